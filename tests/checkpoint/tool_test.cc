// dtrain-checkpoint: what it prints and how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "checkpoint/posix_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Result {
  int code = -1;
  std::string output;  // Both streams.
};

Result RunTool(const std::string& arguments) {
  const std::string command = absl::StrCat("\"", TOOL_PATH, "\" ", arguments, " 2>&1");
  Result result;
  FILE* pipe = popen(command.c_str(), "r");
  DT_CHECK(pipe != nullptr);
  char buffer[4096];
  while (const size_t n = fread(buffer, 1, sizeof(buffer), pipe)) {
    result.output.append(buffer, n);
  }
  const int status = pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

class ToolTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto storage = OpenPosixStorage(folder_.path());
    DT_CHECK_OK(storage.status());
    auto epoch = BeginEpoch(**storage, "job", 2, std::nullopt);
    DT_CHECK_OK(epoch.status());
    for (const int64_t step : {100, 200}) {
      DT_CHECK(SaveOnRanks(**storage, OptionsFor(*epoch), 2, step)[0].durable());
    }
  }
  std::string Damage() {
    const std::string path = folder_.path() + "/step-000000000200.e1/state/rank-1-of-2.safetensors";
    std::string content = *ReadFile(path);
    content.back() = static_cast<char>(content.back() ^ 1);
    DT_CHECK_OK(WriteFileAtomic(path, content));
    return path;
  }
  const TemporaryFolder folder_{TemporaryFolder::Where::kMemory};
};

TEST_F(ToolTest, ListShowsEveryCheckpoint) {
  const Result result = RunTool("list --verify " + folder_.path());
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("step"), HasSubstr(" 200 "), HasSubstr(" 100 "),
                                   HasSubstr("verified"), HasSubstr("yes")));
}

TEST_F(ToolTest, ShowNamesFilesAndTensors) {
  const Result result = RunTool("show --tensors " + folder_.path());
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("step 200 of epoch 1"), HasSubstr("model/config.json"),
                    HasSubstr("BF16  [16, 32]  layers.0.weight"), HasSubstr("ZeRO stage  1")));
  const Result older = RunTool("show --name step-000000000100.e1 " + folder_.path());
  EXPECT_THAT(older.output, HasSubstr("step 100 of epoch 1"));
}

TEST_F(ToolTest, VerifyEndsWith64AndNamesTheDamagedFile) {
  EXPECT_EQ(RunTool("verify " + folder_.path()).code, 0);
  const std::string path = Damage();
  const Result result = RunTool("verify " + folder_.path());
  EXPECT_EQ(result.code, 64);
  EXPECT_THAT(result.output, AllOf(HasSubstr(path), HasSubstr("1 of 2 checkpoint(s) are damaged"),
                                   HasSubstr("step-000000000100.e1  every byte verified")));
  EXPECT_EQ(RunTool("verify " + folder_.path() + "/step-000000000100.e1/").code, 0);
  EXPECT_EQ(RunTool("verify " + folder_.path() + "/step-000000000200.e1").code, 64);
  EXPECT_EQ(RunTool("list " + folder_.path()).code, 0) << "sizes are right; only --verify reads";
  EXPECT_EQ(RunTool("list --verify " + folder_.path()).code, 64);
}

TEST_F(ToolTest, WrongUseEndsWith64AndCreatesNothing) {
  EXPECT_EQ(RunTool("").code, 64);
  EXPECT_EQ(RunTool("frobnicate x").code, 64);
  const Result missing = RunTool("verify " + folder_.path() + "/nothing");
  EXPECT_EQ(missing.code, 64);
  EXPECT_THAT(missing.output, HasSubstr("is not a folder"));
  EXPECT_FALSE(FileExists(folder_.path() + "/nothing"));
  EXPECT_EQ(RunTool("show --name latest " + folder_.path()).code, 64);
  EXPECT_EQ(RunTool("verify " + folder_.path() + "/epochs").code, 64);
}

TEST_F(ToolTest, HelpHasExamples) {
  for (const char* arguments : {"--help", "list --help", "show --help", "verify --help"}) {
    const Result result = RunTool(arguments);
    EXPECT_EQ(result.code, 0);
    EXPECT_THAT(result.output, HasSubstr("Example")) << arguments;
  }
  EXPECT_EQ(RunTool("--version").code, 0);
}

}  // namespace
}  // namespace dtrain::checkpoint
