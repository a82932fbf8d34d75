// The files of an agent after a crash at each byte of a write, on a full disk, and where nothing
// can be written: the coordinator's and the agents' cores touch none, so these are all that a crash
// can damage for the next agent.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/jobs/job_registry.h"
#include "launcher/records/attempt_logs.h"
#include "launcher/records/event_log.h"
#include "launcher/records/reporter.h"
#include "launcher/temp_dir.h"

namespace dtrain::launcher::agent_files_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class AgentFiles : public ::testing::Test {
 protected:
  std::string At(const std::string& name) const { return absl::StrCat(folder_.path(), "/", name); }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(At(name), std::ios::trunc | std::ios::binary) << text;
  }

  TempDir folder_ = *TempDir::Create(::testing::TempDir());
};

TEST_F(AgentFiles, AnEntryOfTheRegistryThatACrashHasTornIsNoJobAndIsRemoved) {
  std::string whole;
  const std::string name = absl::StrCat(getpid(), ".json");
  {
    const auto entry = JobEntry::Add(folder_.path(), {.pid = getpid(), .run_dir = "/runs/a"});
    ASSERT_TRUE(entry.ok()) << entry.status();
    whole = *ReadFile(At(name));
    EXPECT_THAT(*RunningJobs(folder_.path()), SizeIs(1));
  }
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    Write(name, whole.substr(0, bytes));
    const auto jobs = RunningJobs(folder_.path());
    ASSERT_TRUE(jobs.ok()) << jobs.status();
    EXPECT_THAT(*jobs, IsEmpty()) << bytes << " bytes";
    EXPECT_FALSE(FileExists(At(name)));
  }
  const auto again = JobEntry::Add(folder_.path(), {.pid = getpid(), .run_dir = "/runs/b"});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(RunningJobs(folder_.path())->at(0).run_dir, "/runs/b");
}

TEST_F(AgentFiles, AnEntryThatIsGoneBeforeItsAgentIsNoError) {
  auto entry = JobEntry::Add(folder_.path(), {.pid = getpid()});
  ASSERT_TRUE(entry.ok()) << entry.status();
  std::filesystem::remove_all(folder_.path());
  EXPECT_THAT(*RunningJobs(folder_.path()), IsEmpty());
}

// The events behind a line that a crash has torn are whole.
TEST_F(AgentFiles, ALogOfEventsGoesOnBehindATornLine) {
  std::string whole;
  {
    auto log = *EventLog::Open(At("events.jsonl"), {"run", 0});
    ASSERT_TRUE(log.Append("first", {{"rank", 1}}).ok());
    whole = *ReadFile(At("events.jsonl"));
  }
  for (size_t bytes = 0; bytes <= whole.size(); bytes += 3) {
    Write("events.jsonl", whole.substr(0, bytes));
    auto log = *EventLog::Open(At("events.jsonl"), {"run", 0});
    ASSERT_TRUE(log.Append("second", {{"rank", 2}}).ok());
    const std::string text = *ReadFile(At("events.jsonl"));
    const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
    const auto last = ParseJson(lines.back(), "events.jsonl");
    ASSERT_TRUE(last.ok()) << bytes << " bytes: " << text;
    EXPECT_EQ((*last)["event"], "second");
  }
}

// A limit on the size of files stands for a disk that is full for a while.
TEST_F(AgentFiles, ALogOfEventsGoesOnBehindALineThatTheDiskHadNoRoomFor) {
  auto log = *EventLog::Open(At("events.jsonl"), {"run", 0});
  ASSERT_TRUE(log.Append("first", {{"rank", 1}}).ok());
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit whole{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &whole), 0);
  rlimit small = whole;
  small.rlim_cur = ReadFile(At("events.jsonl"))->size() + 10;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status torn = log.Append("second", {{"rank", 2}});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &whole), 0);
  std::signal(SIGXFSZ, before);
  EXPECT_FALSE(torn.ok());
  ASSERT_TRUE(log.Append("third", {{"rank", 3}}).ok());
  const std::string text = *ReadFile(At("events.jsonl"));
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 3U) << text;
  const auto last = ParseJson(lines.back(), "events.jsonl");
  ASSERT_TRUE(last.ok()) << text;
  EXPECT_EQ((*last)["event"], "third");
}

TEST_F(AgentFiles, AFullDiskCostsEventsAndNothingElse) {
  ReporterOptions options;
  options.events_path = "/dev/full";
  Write("rank-0.jsonl", "{\"kind\":\"ckpt\",\"step\":7,\"durable\":true}\n");
  testing::internal::CaptureStderr();
  {
    const auto reporter = Reporter::Start(options);
    ASSERT_TRUE(reporter.ok()) << reporter.status();
    (*reporter)->FollowMetrics(At("rank-0.jsonl"), 0);
    (*reporter)->Event("end", {{"rank", 1}});
    (*reporter)->Event("end", {{"rank", 2}});
    EXPECT_EQ((*reporter)->ReadDurableStep(), 7);
    EXPECT_TRUE((*reporter)->Finish(absl::Seconds(30)));
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("cannot write /dev/full: write: No space left on device"));
  EXPECT_EQ(said.find("cannot write"), said.rfind("cannot write")) << "it is said once";
}

TEST_F(AgentFiles, WhereNothingCanBeWrittenThePathIsNamed) {
  ReporterOptions options;
  options.events_path = "/proc/none/events.jsonl";
  const auto reporter = Reporter::Start(options);
  ASSERT_FALSE(reporter.ok());
  EXPECT_THAT(std::string(reporter.status().message()), HasSubstr("/proc/none/events.jsonl"));
}

// From this step it follows whether a failure counts as one without progress.
TEST_F(AgentFiles, TheDurableStepIsThatOfTheLastWholeRecordHoweverTheFileEnds) {
  std::string text;
  std::vector<size_t> ends = {0};
  for (int step = 10; step <= 30; step += 10) {
    absl::StrAppend(&text, "{\"kind\":\"ckpt\",\"step\":", step, ",\"durable\":true}\n");
    ends.push_back(text.size());
  }
  for (size_t bytes = 0; bytes <= text.size(); bytes += 5) {
    Write("rank-0.jsonl", text.substr(0, bytes));
    ReporterOptions options;
    options.events_path = At("events.jsonl");
    options.show_records = false;
    const auto reporter = *Reporter::Start(options);
    reporter->FollowMetrics(At("rank-0.jsonl"), 0);
    int64_t expected = -1;
    for (size_t record = 1; record < ends.size(); ++record) {
      // The end of a line is no part of its record.
      expected = bytes + 1 >= ends[record] ? static_cast<int64_t>(10 * record) : expected;
    }
    EXPECT_EQ(reporter->ReadDurableStep(), expected) << bytes << " bytes";
    // The file is gone, as after a crash of the disk: what was read stays.
    std::filesystem::remove(At("rank-0.jsonl"));
    EXPECT_EQ(reporter->ReadDurableStep(), expected);
  }
}

TEST_F(AgentFiles, TheNumberOfTheNextLogsIsBehindAllThatACrashHasLeft) {
  EXPECT_EQ(NewestAttempt(At("logs")), std::nullopt);
  for (const char* const name : {"attempt-0", "attempt-2", "attempt-", "attempt-7x", "other-9"}) {
    std::filesystem::create_directories(At(absl::StrCat("logs/", name)));
  }
  Write("logs/attempt-4", "");  // A disk was full, and no folder was made of it.
  EXPECT_EQ(NewestAttempt(At("logs")), 4);
}

// A rank's output, which its process appends to.
class LimitedLog : public AgentFiles {
 protected:
  void Append(const std::string& text) const {
    ASSERT_TRUE(WriteFully(writer_.get(), text.data(), text.size()).ok());
  }
  std::string Output() const { return ReadFile(path_).value_or("none"); }
  std::string Kept() const { return ReadFile(path_ + ".1").value_or("none"); }

  const std::string path_ = At("rank-0.out");
  const UniqueFd writer_ = *OpenFile(path_, O_WRONLY | O_CREAT | O_APPEND);
};

TEST_F(LimitedLog, IsBegunAnewAboveItsLimitWithItsLastBytesKept) {
  Append("one\n");
  ASSERT_TRUE(LimitLog(path_, 4).ok());
  EXPECT_EQ(Output(), "one\n") << "it is not above the limit";
  EXPECT_EQ(Kept(), "none");
  Append("two\n");
  ASSERT_TRUE(LimitLog(path_, 4).ok());
  EXPECT_EQ(Output(), "");
  EXPECT_EQ(Kept(), "two\n");
  Append("three\n");
  EXPECT_EQ(Output(), "three\n") << "the same process writes on";
  ASSERT_TRUE(LimitLog(path_, 4).ok());
  EXPECT_EQ(Output(), "");
  EXPECT_EQ(Kept(), "ree\n");
}

TEST_F(LimitedLog, StaysAsItIsWhereItCannotBeKept) {
  std::filesystem::create_directories(path_ + ".1/folder");
  Append("one\n");
  const absl::Status limited = LimitLog(path_, 2);
  EXPECT_THAT(std::string(limited.message()), HasSubstr("rank-0.out.1"));
  EXPECT_EQ(Output(), "one\n");
}

TEST_F(LimitedLog, IsLookedAtUntilTheAttemptEnds) {
  const LogLimits limits({path_, At("never-there")}, 4, absl::Milliseconds(5));
  Append("three\n");
  for (const Deadline deadline = Deadline::After(absl::Seconds(30));
       !Output().empty() && !deadline.Expired();) {
    Clock::Real().Sleep(absl::Milliseconds(1));
  }
  EXPECT_EQ(Output(), "");
  EXPECT_EQ(Kept(), "ree\n");
}

TEST(LogBytesMax, IsANumberOfBytesOrTheDefault) {
  EXPECT_EQ(*LogBytesMax(""), uint64_t{256} << 20);
  EXPECT_EQ(*LogBytesMax("0"), 0U);
  EXPECT_EQ(*LogBytesMax("1000"), 1000U);
  for (const char* const text : {"-1", "1k", "a\nb"}) {
    const absl::Status refused = LogBytesMax(text).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(
        std::string(refused.message()),
        ::testing::AllOf(HasSubstr("DTRAIN_LOG_BYTES_MAX is \""), ::testing::Not(HasSubstr("\n"))));
  }
}

TEST(WhyNoRoom, IsAFullOrReadOnlyFileSystem) {
  constexpr uint64_t kDisk = uint64_t{1} << 40;
  EXPECT_EQ(WhyNoRoom({.bytes = kDisk, .bytes_free = kDisk / 2}), 0);
  EXPECT_EQ(WhyNoRoom({.bytes = kDisk, .bytes_free = 1U << 20}), 0);
  EXPECT_EQ(WhyNoRoom({.bytes = kDisk, .bytes_free = 0}), ENOSPC);
  EXPECT_EQ(WhyNoRoom({.bytes = kDisk, .bytes_free = 4096}), ENOSPC)
      << "not even for a folder each";
  EXPECT_EQ(WhyNoRoom({.is_read_only = true, .bytes = kDisk, .bytes_free = kDisk}), EROFS);
  EXPECT_EQ(WhyNoRoom({}), 0) << "some file systems do not count their bytes";
}

TEST_F(AgentFiles, LookingForRoomMakesNothing) {
  EXPECT_TRUE(CheckLogRoom(At("run/logs")).ok());
  EXPECT_FALSE(std::filesystem::exists(At("run")));
  ASSERT_TRUE(MakeDirectories(At("run/logs")).ok());
  EXPECT_TRUE(CheckLogRoom(At("run/logs")).ok());
  if (geteuid() != 0) {  // Root may write everywhere.
    std::filesystem::permissions(At("run"), std::filesystem::perms::owner_read);
    const absl::Status refused = CheckLogRoom(At("run/other"));
    std::filesystem::permissions(At("run"), std::filesystem::perms::owner_all);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("Permission denied"));
  }
}

}  // namespace
}  // namespace dtrain::launcher::agent_files_test
