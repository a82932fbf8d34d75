#include "comm/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/system/crash_stack.h"
#include "comm/flight_dumper.h"

namespace dtrain::comm::flight_recorder_test {
namespace {

FlightCall AllReduceCall(uint64_t sequence, absl::string_view name) {
  FlightCall call;
  call.header.kind = CallKind::kAllReduce;
  call.header.sequence = sequence;
  call.header.bytes = 400;
  call.header.wire = Wire::kBFloat16;
  call.header.step = 7;
  SetName(call.header, name);
  call.input_bytes = call.output_bytes = 400;
  return call;
}

TEST(FlightRecorderTest, AnEntryHasTheKeysThatPyTorchsAnalyserReads) {
  FakeClock clock;
  const auto recorder = FlightRecorder::Create({.name = "world", .rank = 1, .size = 2}, clock);
  const uint64_t ticket = recorder->Queued(AllReduceCall(3, "bucket 2"));
  clock.Advance(absl::Seconds(1));
  recorder->Started(ticket, absl::Seconds(12));
  clock.Advance(absl::Seconds(2));
  recorder->Ended(ticket, absl::OkStatus());
  const Json record = FlightRecords(*recorder);
  EXPECT_EQ(record["version"], "2.10");
  EXPECT_EQ(record["pg_config"]["world"]["ranks"], "[0, 1]");
  EXPECT_EQ(record["pg_status"]["world"]["last_completed_collective"], 3);
  ASSERT_EQ(record["entries"].size(), 1U);
  const Json& entry = record["entries"][0];
  EXPECT_EQ(entry["profiling_name"], "nccl:all_reduce");
  EXPECT_EQ(entry["process_group"], Json::parse(R"(["world", "dtrain"])"));
  EXPECT_EQ(entry["collective_seq_id"], 3);
  EXPECT_EQ(entry["input_sizes"], Json::parse("[[100]]"));
  EXPECT_EQ(entry["output_dtypes"], Json::parse(R"(["Float"])"));
  EXPECT_EQ(entry["state"], "completed");
  EXPECT_EQ(entry["timeout_ms"], 12000);
  EXPECT_EQ(entry["is_p2p"], false);
  const auto created = entry["time_created_ns"].get<int64_t>();
  EXPECT_EQ(entry["time_discovered_started_ns"], created + 1'000'000'000);
  EXPECT_EQ(entry["time_discovered_completed_ns"], created + 3'000'000'000);
  EXPECT_EQ(entry["dtrain"]["name"], "bucket 2");
  EXPECT_EQ(entry["dtrain"]["step"], 7);
  EXPECT_EQ(entry["dtrain"]["wire"], "bf16");
  EXPECT_EQ(entry["dtrain"]["error"], nullptr);
}

TEST(FlightRecorderTest, ACallThatFailedStaysStartedAndSaysWhy) {
  const auto recorder = FlightRecorder::Create({});
  recorder->Queued(AllReduceCall(1, "never started"));
  const uint64_t failed = recorder->Queued(AllReduceCall(2, "failed"));
  recorder->Started(failed, absl::Seconds(1));
  recorder->Ended(failed, absl::DeadlineExceededError("rank 1 is missing"));
  const Json entries = recorder->Entries();
  EXPECT_EQ(entries[0]["state"], "scheduled");
  EXPECT_EQ(entries[1]["state"], "started");
  EXPECT_EQ(entries[1]["time_discovered_completed_ns"], nullptr);
  EXPECT_THAT(entries[1]["dtrain"]["error"].get<std::string>(),
              ::testing::HasSubstr("rank 1 is missing"));
}

TEST(FlightRecorderTest, SendsAndReceivesAreNamedByTheirEnds) {
  const auto recorder = FlightRecorder::Create({.rank = 1, .size = 4});
  FlightCall call;
  call.header.kind = CallKind::kSend;
  call.peer = 3;
  recorder->Queued(call);
  call.header.kind = CallKind::kReceive;
  call.peer = 0;
  recorder->Queued(call);
  const Json entries = recorder->Entries();
  EXPECT_EQ(entries[0]["profiling_name"], "nccl:send 1->3");
  EXPECT_EQ(entries[1]["profiling_name"], "nccl:recv 1<-0");
  EXPECT_NE(entries[0]["p2p_seq_id"], entries[1]["p2p_seq_id"]) << "else they count as coalesced";
}

TEST(FlightRecorderTest, OneRecordHoldsAllGroupsOfTheProcessInTheOrderOfCalls) {
  const auto world = FlightRecorder::Create({.name = "world", .size = 4});
  const auto part =
      FlightRecorder::Create({.name = "world/split1.0", .size = 2, .world_ranks = {1, 3}});
  world->Queued(AllReduceCall(1, "first"));
  part->Queued(AllReduceCall(1, "second"));
  world->Queued(AllReduceCall(2, "third"));
  {
    const auto gone = FlightRecorder::Create({.name = "gone"});
    gone->Queued(AllReduceCall(1, "gone"));
  }
  const Json record = FlightRecords();
  EXPECT_EQ(record["pg_config"]["world/split1.0"]["ranks"], "[1, 3]");
  EXPECT_FALSE(record["pg_config"].contains("gone"));
  std::vector<std::string> names;
  for (const Json& entry : record["entries"]) {
    names.push_back(entry["dtrain"]["name"]);
  }
  EXPECT_THAT(names, ::testing::ElementsAre("first", "second", "third"));
}

TEST(ProgressOfGroupsTest, SaysWhichCollectiveEachGroupHasEnteredAndLeft) {
  const auto world = FlightRecorder::Create({.name = "world", .rank = 0, .size = 4});
  const auto part =
      FlightRecorder::Create({.name = "part", .rank = 0, .size = 2, .world_ranks = {2, 3}});
  const auto beside = FlightRecorder::Create({.name = "save", .rank = 0, .size = 4});
  beside->SetBeside();
  world->Started(world->Queued(AllReduceCall(1, "first")), absl::Seconds(1));
  world->Ended(1, absl::OkStatus());
  for (const auto& recorder : {part, beside}) {
    recorder->Started(recorder->Queued(AllReduceCall(5, "second")), absl::Seconds(1));
  }
  world->Queued(AllReduceCall(2, "not entered yet"));
  const std::vector<GroupProgress> groups = ProgressOfGroups();
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].group, "part (2 ranks from rank 2)");
  EXPECT_TRUE(groups[0].inside());
  EXPECT_EQ(groups[0].entered, 5U);
  EXPECT_EQ(groups[0].left, 0U);
  EXPECT_EQ(groups[0].call, R"(all_reduce "second" sum fp32 400 bytes as bf16)")
      << "without the step, in which ranks may differ";
  EXPECT_EQ(groups[1].group, "world");
  EXPECT_FALSE(groups[1].inside());
  EXPECT_EQ(groups[1].entered, 1U);
}

class FlightDumperTest : public ::testing::Test {
 protected:
  FlightDumperTest() { std::filesystem::remove_all(folder_); }
  ~FlightDumperTest() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ + "/flight/rank-0.json"; }
  absl::StatusOr<std::unique_ptr<FlightDumper>> Start() const {
    return FlightDumper::Start({.path = path(), .about = {{"rank", 0}}});
  }
  Json Read() const {
    const auto text = ReadFile(path());
    return text.ok() ? ParseJson(*text, path()).value_or(Json()) : Json();
  }
  const std::string folder_ = ::testing::TempDir() + "flight_dumper_" + std::to_string(::getpid());
};

TEST_F(FlightDumperTest, ASignalMakesTheSleepingThreadWrite) {
  const auto recorder = FlightRecorder::Create({});
  recorder->Queued(AllReduceCall(1, "bucket 0"));
  {
    auto dumper = Start();
    ASSERT_TRUE(dumper.ok()) << dumper.status();
    WriteStackAtSignal(SIGUSR2, FlightDumper::RequestForSignal);
    raise(SIGUSR2);  // The destructor waits until the requested record is written.
  }
  const Json record = Read();
  ASSERT_TRUE(record.is_object()) << path();
  EXPECT_EQ(record["dtrain"]["reason"], "signal 12");
  EXPECT_EQ(record["dtrain"]["rank"], 0);
  EXPECT_EQ(record["entries"].size(), 1U);
}

TEST_F(FlightDumperTest, AFailingCallMakesItWriteOfItself) {
  const auto recorder = FlightRecorder::Create({});
  {
    auto dumper = Start();
    ASSERT_TRUE(dumper.ok()) << dumper.status();
    recorder->Ended(recorder->Queued(AllReduceCall(1, "bucket 0")), absl::OkStatus());
    recorder->Ended(recorder->Queued(AllReduceCall(2, "bucket 1")), absl::AbortedError("over"));
  }
  EXPECT_EQ(Read()["dtrain"]["reason"], "a collective failed");
}

// The end of a job that lost a rank would wait for it.
TEST_F(FlightDumperTest, AFailureThatTheRankWritesByItselfIsNotWrittenOnceMore) {
  const auto recorder = FlightRecorder::Create({});
  {
    auto dumper = Start();
    ASSERT_TRUE(dumper.ok()) << dumper.status();
    recorder->Ended(recorder->Queued(AllReduceCall(1, "bucket 0")), absl::AbortedError("over"));
    ASSERT_TRUE((*dumper)->Dump("the rank ends").ok());
  }
  EXPECT_EQ(Read()["dtrain"]["reason"], "the rank ends");
  {
    auto next = Start();  // Of the same process's next job.
    ASSERT_TRUE(next.ok()) << next.status();
    ASSERT_TRUE((*next)->Dump("a look").ok());
    recorder->Ended(recorder->Queued(AllReduceCall(2, "bucket 1")), absl::AbortedError("over"));
  }
  EXPECT_EQ(Read()["dtrain"]["reason"], "a collective failed") << "it came behind the look";
}

TEST_F(FlightDumperTest, WithoutARequestNothingIsWritten) {
  const auto recorder = FlightRecorder::Create({});
  recorder->Ended(recorder->Queued(AllReduceCall(1, "bucket 0")), absl::OkStatus());
  { ASSERT_TRUE(Start().ok()); }
  EXPECT_FALSE(FileExists(path()));
}

TEST_F(FlightDumperTest, AFolderThatCannotBeMadeIsNamed) {
  const auto recorder = FlightRecorder::Create({});
  recorder->Queued(AllReduceCall(1, "bucket 0"));
  auto dumper = FlightDumper::Start({.path = "/proc/nowhere/rank-0.json"});
  ASSERT_TRUE(dumper.ok());
  const absl::Status status = (*dumper)->Dump("a test");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("/proc/nowhere"));
}

TEST_F(FlightDumperTest, AFailedCheckWritesBeforeTheProcessEnds) {
  EXPECT_EXIT(
      {
        const auto recorder = FlightRecorder::Create({});
        recorder->Queued(AllReduceCall(1, "bucket 0"));
        auto dumper = Start();
        DT_CHECK(false) << "for the test";
      },
      ::testing::ExitedWithCode(70), "for the test");
  EXPECT_EQ(Read()["dtrain"]["reason"], "a failed check");
}

}  // namespace
}  // namespace dtrain::comm::flight_recorder_test
