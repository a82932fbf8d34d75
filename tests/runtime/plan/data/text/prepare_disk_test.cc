// A preparation for which there is no room on the disk.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/json.h"
#include "gtest/gtest.h"
#include "runtime/plan/data/text/prepare_text.h"
#include "tests/runtime/plan/data/text/byte_chat_encoder.h"
#include "tests/runtime/plan/temp_folder.h"

namespace dtrain::plan::prepare_disk_test {
namespace {

TEST(PrepareDiskTest, WithoutRoomNoFileAppearsAndTheNextRunGoesOn) {
  const TempFolder folder;
  const ByteChatEncoder encoder;
  std::string lines;
  for (int i = 0; i < 20000; ++i) {
    lines += DumpJson(Json{{"text", absl::StrCat("document ", i, std::string(40, 'x'))}}) + "\n";
  }
  PrepareTextOptions options;
  options.sources = {folder.Write("a.jsonl", lines)};
  options.threads = 2;
  options.out = folder.path() + "/whole";
  ASSERT_TRUE(PrepareText(options, encoder).ok());
  options.out = folder.path() + "/full";
  const pid_t child = fork();
  if (child == 0) {  // Files of more than a mebibyte cannot be written here.
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    const bool is_limited = setrlimit(RLIMIT_FSIZE, &limit) == 0;
    const std::string why(PrepareText(options, encoder).status().message());
    _exit(is_limited && absl::StrContains(why, options.out) &&
                  absl::StrContains(why, "File too large")
              ? 0
              : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "another error than that of a file";
  EXPECT_FALSE(FileExists(options.out + "/train.bin"));
  const absl::StatusOr<TextReport> report = PrepareText(options, encoder);
  ASSERT_TRUE(report.ok()) << report.status();
  for (const char* const name : {"/train.bin", "/val.bin"}) {
    EXPECT_EQ(*ReadFile(options.out + name), *ReadFile(folder.path() + "/whole" + name));
  }
}

}  // namespace
}  // namespace dtrain::plan::prepare_disk_test
