// dtrain-checkpoint: its output and exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/testing.h"
#include "tests/checkpoint/tool_runs.h"

namespace dtrain::checkpoint::tool_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

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
  const ToolRun result = RunTool("list --verify " + folder_.path());
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_THAT(result.output,
              AllOf(ContainsRegex("step .* verified"), ContainsRegex("\n +200 .*[0-9.]+ k?B +yes"),
                    ContainsRegex("\n +100 .* UTC +[0-9]+ s +2 +1 +[0-9.]+ k?B +yes")));
  const char* const hint = "--verify also reads every byte";
  EXPECT_THAT(result.output, Not(HasSubstr(hint))) << "that is what it did";
  EXPECT_THAT(RunTool("list " + folder_.path()).output, HasSubstr(hint));
  EXPECT_THAT(RunTool("list --json " + folder_.path()).output, Not(HasSubstr(hint)));
}

// A run directory, as `dtrain logs` and `dtrain trace` take it.
TEST_F(ToolTest, ARunDirectoryLeadsToItsCheckpoints) {
  const std::string run = folder_.path() + "/run";
  DT_CHECK_OK(MakeDirectories(run));
  const ToolRun nothing = RunTool("list " + run);
  EXPECT_EQ(nothing.code, 64);
  EXPECT_THAT(nothing.output, HasSubstr("holds no finished checkpoint"));
  DT_CHECK_OK(WriteFileAtomic(
      run + "/config.json", absl::StrCat("{\"checkpoint\": {\"dir\": \"", folder_.path(), "\"}}")));
  for (const char* command : {"list", "show", "verify"}) {
    const ToolRun configured = RunTool(absl::StrCat(command, " ", run));
    EXPECT_EQ(configured.code, 0) << configured.output;
    EXPECT_THAT(configured.output, ContainsRegex("(^|[^0-9])0*200[^0-9]")) << command;
  }
  DT_CHECK_OK(WriteFileAtomic(run + "/config.json", "{\"checkpoint\": {\"dir\": \"\"}}"));
  DT_CHECK(symlink(folder_.path().c_str(), (run + "/checkpoints").c_str()) == 0);
  const ToolRun usual = RunTool("list " + run + "/");
  EXPECT_EQ(usual.code, 0) << usual.output;
  EXPECT_THAT(usual.output, HasSubstr(" 200 "));
  for (const char* without_bucket : {"s3://", "s3:///"}) {
    const ToolRun refused = RunTool(absl::StrCat("list ", without_bucket));
    EXPECT_EQ(refused.code, 64);
    EXPECT_THAT(refused.output, HasSubstr("is no name of a bucket"));
  }
}

// `dtrain checkpoint list` may be called in another folder than the run was started in.
TEST_F(ToolTest, ARelativeFolderOfCheckpointsIsThatOfTheRun) {
  const size_t slash = folder_.path().rfind('/');
  const std::string parent = folder_.path().substr(0, slash);
  const std::string run = folder_.path() + "/run";
  DT_CHECK_OK(MakeDirectories(run));
  const auto write = [&run](const std::string& dir, const std::string& started_in) {
    const Json config = {{"checkpoint", {{"dir", dir}}}};
    DT_CHECK_OK(WriteFileAtomic(run + "/config.json", DumpJson(config)));
    DT_CHECK_OK(WriteFileAtomic(run + "/run.json", DumpJson(Json{{"folder", started_in}})));
  };
  write(folder_.path().substr(slash + 1), parent);
  const ToolRun found = RunTool("list " + run);
  EXPECT_EQ(found.code, 0) << found.output;
  EXPECT_THAT(found.output, HasSubstr(" 200 "));
  write("nowhere/./here", parent);
  const ToolRun lost = RunTool("list " + run);
  EXPECT_EQ(lost.code, 64);
  EXPECT_THAT(lost.output, AllOf(HasSubstr(parent + "/nowhere/here (checkpoint.dir is"),
                                 HasSubstr("give its path instead of " + run)));
  EXPECT_EQ(std::count(lost.output.begin(), lost.output.end(), '\n'), 1) << lost.output;
}

TEST_F(ToolTest, ShowNamesFilesAndTensors) {
  const ToolRun result = RunTool("show --tensors " + folder_.path());
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("  step          200\n"),
                    ContainsRegex("UTC \\([0-9]+ s ago\\), by attempt 1 of the run\n"),
                    HasSubstr("  world size    2\n"), HasSubstr("  ZeRO stage    1\n"),
                    ContainsRegex("parameters +[0-9,]+ \\(.*BF16"),
                    ContainsRegex("[0-9] k?B +model/config.json +[0-9a-f]{32}\n"),
                    ContainsRegex("BF16 +512 +\\[16, 32\\] +layers.0.weight +model/")));
  EXPECT_THAT(result.output, Not(HasSubstr("{"))) << "JSON is not for people";
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("  run           job\n"),
                    HasSubstr("  continues     no checkpoint: the run started at step 0\n"),
                    HasSubstr("  tensors       8 of the model, 6 of the training state\n"),
                    ContainsRegex("  size +[0-9.]+ k?B in 6 files\n"),
                    ContainsRegex("\nOptimizer and schedule\n  step +200\n  lr +0.0003\n"),
                    ContainsRegex("\nPosition in the data\n  epoch +0\n  sample +1600\n"),
                    HasSubstr("\nTracked by the program\n  note")));
  const ToolRun older = RunTool("show --name step-000000000100.e1 " + folder_.path());
  EXPECT_THAT(older.output, HasSubstr("  step          100\n"));
  EXPECT_THAT(result.output, HasSubstr("\nTensors\n"));
  EXPECT_THAT(older.output, Not(HasSubstr("\nTensors\n"))) << "they were not asked for";
  EXPECT_THAT(older.output, HasSubstr("(--tensors lists them)"));
  EXPECT_THAT(result.output, Not(HasSubstr("(--tensors lists them)")));
}

TEST_F(ToolTest, ShowSaysWhichCheckpointAResumedAttemptContinues) {
  auto storage = OpenPosixStorage(folder_.path());
  ASSERT_TRUE(storage.ok()) << storage.status();
  const auto epoch = BeginEpoch(**storage, "job", 2, StepId{1, 200});
  ASSERT_TRUE(epoch.ok()) << epoch.status();
  ASSERT_TRUE(SaveOnRanks(**storage, OptionsFor(*epoch), 2, 300)[0].durable());
  EXPECT_THAT(
      RunTool("show " + folder_.path()).output,
      AllOf(HasSubstr("  step          300\n"), HasSubstr("  continues     step-000000000200.e1\n"),
            HasSubstr("by attempt 2 of the run\n")));
  const Json checkpoint = *ParseJson(RunTool("show --json " + folder_.path()).output, "show");
  EXPECT_EQ(checkpoint["epoch"], 2);
  EXPECT_EQ(checkpoint["parent"],
            Json::parse(R"({"step": 200, "epoch": 1, "name": "step-000000000200.e1"})"));
}

TEST_F(ToolTest, JsonHoldsTheSameForPrograms) {
  const ToolRun shown = RunTool("show --json " + folder_.path());
  EXPECT_EQ(shown.code, 0) << shown.output;
  const Json checkpoint = *ParseJson(shown.output, "show");
  EXPECT_EQ(checkpoint["step"], 200);
  EXPECT_EQ(checkpoint["world_size"], 2);
  EXPECT_EQ(checkpoint["zero_stage"], 1);
  EXPECT_GT(checkpoint["parameters"], 0);
  uint64_t bytes = 0;
  for (const Json& file : checkpoint["files"]) {
    bytes += file["bytes"].get<uint64_t>();
    EXPECT_EQ(file["xxh3_128"].get<std::string>().size(), 32U);
  }
  EXPECT_EQ(checkpoint["bytes"], bytes);
  EXPECT_EQ(checkpoint["path"], folder_.path() + "/step-000000000200.e1");
  EXPECT_EQ(checkpoint["name"], "step-000000000200.e1");
  EXPECT_EQ(checkpoint["epoch"], 1);
  EXPECT_EQ(checkpoint["job"], "job");
  EXPECT_TRUE(checkpoint["parent"].is_null());
  EXPECT_EQ(checkpoint["layout_hash"], "0123456789abcdef");
  EXPECT_EQ(checkpoint["engine"]["lr"], 3e-4);
  EXPECT_EQ(checkpoint["data"]["sample"], 1600);
  EXPECT_EQ(checkpoint["skip"], Json::parse("[[10, 20], [40, 41]]"));
  EXPECT_THAT(checkpoint["user"]["note"].get<std::string>(), HasSubstr("quoted"));
  EXPECT_EQ(checkpoint["files"].size(), 6U);
  EXPECT_EQ(checkpoint["tensors"].size(), 14U);
  EXPECT_TRUE(std::any_of(
      checkpoint["tensors"].begin(), checkpoint["tensors"].end(), [](const Json& tensor) {
        return tensor["name"] == "layers.0.weight" && tensor["shape"] == Json({16, 32});
      }));
  Damage();
  const ToolRun listed = RunTool("list --verify --json " + folder_.path(), "/dev/null");
  EXPECT_EQ(listed.code, 64);
  const Json rows = *ParseJson(listed.output, "list");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0]["step"], 200);
  EXPECT_EQ(rows[0]["ok"], false);
  EXPECT_EQ(rows[0]["resumable"], false);
  EXPECT_EQ(rows[1]["ok"], true);
  EXPECT_EQ(rows[1]["resumable"], true);
  const ToolRun verified = RunTool("verify --json " + folder_.path(), "/dev/null");
  EXPECT_EQ(verified.code, 64);
  EXPECT_THAT((*ParseJson(verified.output, "verify"))[0]["problem"].get<std::string>(),
              HasSubstr("rank-1-of-2"));
}

TEST_F(ToolTest, VerifyEndsWith64AndNamesTheDamagedFile) {
  EXPECT_EQ(RunTool("verify " + folder_.path()).code, 0);
  const std::string path = Damage();
  const ToolRun result = RunTool("verify " + folder_.path());
  EXPECT_EQ(result.code, 64);
  EXPECT_THAT(result.output,
              AllOf(HasSubstr(path), HasSubstr("1 of 2 checkpoints is damaged"),
                    ContainsRegex("step-000000000100.e1  good: .*every byte verified")));
  EXPECT_EQ(RunTool("verify " + folder_.path() + "/step-000000000100.e1/").code, 0);
  EXPECT_EQ(RunTool("verify " + folder_.path() + "/step-000000000200.e1").code, 64);
  EXPECT_EQ(RunTool("list " + folder_.path()).code, 0) << "sizes are right; only --verify reads";
  EXPECT_EQ(RunTool("list --verify " + folder_.path()).code, 64);
}

// A run stops at one that it may not read: it does not go on from an older one.
TEST_F(ToolTest, AFileThatMayNotBeReadIsNotCalledDamaged) {
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
  const ToolRun verified = RunTool("verify " + folder_.path(), "&1", 65534);
  EXPECT_EQ(verified.code, 64);
  EXPECT_THAT(verified.output,
              AllOf(HasSubstr("step-000000000200.e1  unreadable: "), HasSubstr("Permission denied"),
                    HasSubstr("2 of 2 checkpoints cannot be read: run this as the user who trains"),
                    Not(HasSubstr("damaged"))));
}

TEST_F(ToolTest, ALinkInThePlaceOfAFolderIsNamedAsOne) {
  const std::string model = folder_.path() + "/step-000000000200.e1/model";
  const TemporaryFolder outside(TemporaryFolder::Where::kMemory);
  std::filesystem::rename(model, outside.path() + "/model");
  std::filesystem::create_symlink(outside.path() + "/model", model);
  const ToolRun run = RunTool("verify " + folder_.path());
  EXPECT_EQ(run.code, 64);
  EXPECT_THAT(run.output, HasSubstr("model is a symbolic link, which is not followed"));
}

TEST_F(ToolTest, WrongUseEndsWith64AndCreatesNothing) {
  EXPECT_EQ(RunTool("").code, 64);
  EXPECT_EQ(RunTool("frobnicate x").code, 64);
  const ToolRun typo = RunTool("lst x");
  EXPECT_EQ(typo.code, 64);
  EXPECT_EQ(typo.output,
            "dtrain checkpoint: unknown command lst; did you mean list? There are: list, show, "
            "verify, diff, export, import, prune, repair, copy\n");
  EXPECT_THAT(RunTool("show x --tensor").output, HasSubstr("did you mean --tensors?"));
  const ToolRun missing = RunTool("verify " + folder_.path() + "/nothing");
  EXPECT_EQ(missing.code, 64);
  EXPECT_THAT(missing.output, HasSubstr("is not a folder"));
  EXPECT_FALSE(FileExists(folder_.path() + "/nothing"));
  EXPECT_EQ(RunTool("show --name latest " + folder_.path()).code, 64);
  EXPECT_EQ(RunTool("verify " + folder_.path() + "/epochs").code, 64);
}

TEST_F(ToolTest, HelpHasExamples) {
  for (const char* arguments :
       {"--help", "list --help", "show --help", "verify --help", "diff --help", "export --help",
        "import --help", "prune --help", "repair --help", "copy --help"}) {
    const ToolRun result = RunTool(arguments);
    EXPECT_EQ(result.code, 0);
    EXPECT_THAT(result.output, HasSubstr("Example")) << arguments;
    EXPECT_THAT(result.output, AnyOf(HasSubstr("Commands:"), HasSubstr("Default: off")))
        << arguments;
  }
  EXPECT_EQ(RunTool("--version").code, 0);
}

}  // namespace
}  // namespace dtrain::checkpoint::tool_test
