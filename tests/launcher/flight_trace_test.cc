#include "launcher/records/flight_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace dtrain::launcher::flight_trace_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kBase = 1'700'000'000'000 * kMs;  // Far from 0, as wall clocks are.

FlightEntry Collective(uint64_t sequence, int64_t start, int64_t end) {
  FlightEntry entry;
  entry.group = "world";
  entry.sequence = sequence;
  entry.kind = "all_reduce";
  entry.name = absl::StrCat("bucket ", sequence);
  entry.bytes = 4096;
  entry.step = 12;
  entry.queued = entry.started = kBase + start;
  entry.completed = end == 0 ? 0 : kBase + end;
  return entry;
}

// Ranks whose clocks are ahead by `ahead`, in three collectives: each rank enters at its own time,
// and all leave `latency` after the last has entered.
std::vector<FlightFile> Ranks(const std::vector<int64_t>& ahead, int64_t latency,
                              const std::vector<std::string>& hosts) {
  std::vector<FlightFile> files(ahead.size());
  for (size_t rank = 0; rank < ahead.size(); ++rank) {
    files[rank].rank = static_cast<int>(rank);
    files[rank].host = hosts[rank];
    for (uint64_t sequence = 1; sequence <= 3; ++sequence) {
      const auto late = static_cast<int64_t>((sequence + rank) % ahead.size()) * 3 * kMs;
      const auto all = static_cast<int64_t>(ahead.size() - 1) * 3 * kMs + latency;
      const auto begin = static_cast<int64_t>(sequence) * 100 * kMs + ahead[rank];
      files[rank].entries.push_back(Collective(sequence, begin + late, begin + all));
    }
    files[rank].written = kBase + 1000 * kMs + ahead[rank];
  }
  return files;
}

TEST(AlignClocksTest, TheOffsetIsFoundToWithinItsError) {
  const std::vector<int64_t> ahead = {0, 700 * kMs, -40 * kMs};
  const auto files = Ranks(ahead, kMs / 2, {"a", "b", "c"});
  const auto offsets = AlignClocks(files);
  for (size_t rank = 0; rank < ahead.size(); ++rank) {
    EXPECT_TRUE(offsets[rank].known);
    EXPECT_LE(std::abs(offsets[rank].nanos - ahead[rank]), offsets[rank].error_nanos) << rank;
    EXPECT_LE(offsets[rank].error_nanos, 5 * kMs) << rank;
  }
}

TEST(AlignClocksTest, OneHostHasOneClockUnlessTheCollectivesSayOtherwise) {
  EXPECT_EQ(AlignClocks(Ranks({0, 0}, kMs, {"a", "a"}))[1].nanos, 0);
  const auto stepped = AlignClocks(Ranks({0, 90 * kMs}, kMs, {"a", "a"}));
  EXPECT_NEAR(static_cast<double>(stepped[1].nanos), 90.0 * kMs, 5.0 * kMs);
}

TEST(AlignClocksTest, ARankIsAlignedThroughAnotherWhereItSharesNoGroupWithTheFirst) {
  auto files = Ranks({0, 50 * kMs, 80 * kMs}, kMs / 2, {"a", "b", "c"});
  for (FlightEntry& entry : files[2].entries) {
    entry.group = "pair";
  }
  for (const FlightEntry& entry : std::vector<FlightEntry>(files[1].entries)) {
    files[1].entries.push_back(entry);
    files[1].entries.back().group = "pair";
  }
  const auto offsets = AlignClocks(files);
  EXPECT_TRUE(offsets[2].known);
  EXPECT_LE(std::abs(offsets[2].nanos - 80 * kMs), offsets[2].error_nanos);
}

TEST(AlignClocksTest, ARankThatMetNobodyIsSaidToBeUnknown) {
  auto files = Ranks({0, 0}, kMs, {"a", "b"});
  files[1].entries.clear();
  const auto offsets = AlignClocks(files);
  EXPECT_TRUE(offsets[0].known);
  EXPECT_FALSE(offsets[1].known);
  EXPECT_TRUE(AlignClocks({}).empty());
}

std::map<std::string, Json> CallsOf(const Json& trace, int rank) {
  std::map<std::string, Json> calls;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "X" && event["pid"] == rank) {
      calls[event["name"].get<std::string>()] = event;
    }
  }
  return calls;
}

TEST(ChromeTraceTest, EachRankHasATrackWithItsCallsOnOneTimeline) {
  const auto files = Ranks({0, 700 * kMs}, kMs / 2, {"a", "b"});
  const Json trace = ChromeTrace(files, AlignClocks(files));
  auto zero = CallsOf(trace, 0);
  auto one = CallsOf(trace, 1);
  ASSERT_EQ(zero.size(), 3U);
  ASSERT_EQ(one.size(), 3U);
  const Json& call = zero["bucket 2"];
  EXPECT_EQ(call["args"]["bytes"], 4096);
  EXPECT_EQ(call["args"]["step"], 12);
  EXPECT_EQ(call["cat"], "all_reduce");
  // In collective 2 rank 1 is the later by 3 ms, and on one timeline both end at once.
  EXPECT_EQ(call["args"]["last_to_enter"], 1);
  const auto end = [](const Json& event) {
    return event["ts"].get<double>() + event["dur"].get<double>();
  };
  EXPECT_NEAR(end(call), end(one["bucket 2"]), 2000);
}

// A Chrome trace counts in microseconds, here from the first call of any rank.
TEST(ChromeTraceTest, TimesAreMicrosecondsFromTheFirstCall) {
  const auto files = Ranks({0, 0}, kMs, {"a", "a"});
  const Json trace = ChromeTrace(files, AlignClocks(files));
  // Collective 1 begins at 100 ms: rank 1 enters then, rank 0 3 ms later, and it ends at 104 ms.
  auto zero = CallsOf(trace, 0);
  auto one = CallsOf(trace, 1);
  EXPECT_EQ(one["bucket 1"]["ts"], 0.0);
  EXPECT_EQ(one["bucket 1"]["dur"], 4'000.0);
  EXPECT_EQ(zero["bucket 1"]["ts"], 3'000.0);
  EXPECT_EQ(zero["bucket 1"]["dur"], 1'000.0);
  EXPECT_EQ(zero["bucket 2"]["ts"], 100'000.0);
  for (auto& calls : {zero, one}) {
    EXPECT_EQ(calls.at("bucket 1")["args"]["last_to_enter"], 0);
    EXPECT_EQ(calls.at("bucket 1")["args"]["waited_for_last_us"], 3'000.0);
    EXPECT_EQ(calls.at("bucket 1")["args"]["sequence"], 1);
  }
  EXPECT_EQ(one["bucket 1"]["tid"], zero["bucket 3"]["tid"]) << "a track for each group";
}

TEST(ChromeTraceTest, ACallThatDidNotEndIsShownUntilTheFileWasWritten) {
  std::vector<FlightFile> files(1);
  files[0].written = kBase + 50 * kMs;
  files[0].entries = {Collective(1, 0, 10 * kMs), Collective(2, 20 * kMs, 0),
                      Collective(3, 21 * kMs, 0)};
  files[0].entries[2].failed = kBase + 30 * kMs;
  files[0].entries[2].error = "rank 1 is gone";
  auto calls = CallsOf(ChromeTrace(files, AlignClocks(files)), 0);
  EXPECT_EQ(calls["bucket 2 (not finished)"]["dur"], 30'000.0);
  EXPECT_EQ(calls["bucket 3 (failed)"]["dur"], 9'000.0);
  EXPECT_EQ(calls["bucket 3 (failed)"]["args"]["error"], "rank 1 is gone");
}

TEST(ParseFlightFileTest, AFileOfAnotherKindIsRefusedByName) {
  for (const char* text : {"[]", "{}", R"({"entries": 3, "dtrain": {"rank": 0}})",
                           R"({"entries": [7], "dtrain": {"rank": 0}})",
                           R"({"entries": [{"process_group": []}], "dtrain": {"rank": 0}})",
                           R"({"entries": [], "dtrain": {"rank": "zero"}})"}) {
    const auto file = ParseFlightFile(Json::parse(text), "flight/rank-0.json");
    ASSERT_FALSE(file.ok()) << text;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr("flight/rank-0.json"));
  }
}

TEST(ParseFlightFileTest, TimesAndNamesAreRead) {
  const auto file =
      ParseFlightFile(Json::parse(R"({"dtrain": {"rank": 2, "host_name": "a", "time_ns": 90},
      "entries": [{"process_group": ["world", "dtrain"], "collective_seq_id": 5,
                   "time_created_ns": 10, "time_discovered_started_ns": 20,
                   "time_discovered_completed_ns": null,
                   "dtrain": {"kind": "all_reduce", "name": "bucket 1", "bytes": 8, "step": 3,
                              "time_failed_ns": 40, "error": "gone", "call": "all_reduce"}}]})"),
                      "x");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->rank, 2);
  const FlightEntry& entry = file->entries.at(0);
  EXPECT_EQ(entry.sequence, 5U);
  EXPECT_EQ(entry.started, 20);
  EXPECT_EQ(entry.completed, 0);
  EXPECT_EQ(entry.failed, 40);
  EXPECT_EQ(entry.error, "gone");
  EXPECT_EQ(file->host, "a");
  EXPECT_EQ(file->written, 90);
  EXPECT_EQ(entry.group, "world");
  EXPECT_EQ(entry.kind, "all_reduce");
  EXPECT_EQ(entry.name, "bucket 1");
  EXPECT_EQ(entry.call, "all_reduce");
  EXPECT_EQ(entry.bytes, 8U);
  EXPECT_EQ(entry.step, 3);
  EXPECT_EQ(entry.queued, 10);
}

TEST(ParseFlightFileTest, WhatIsAbsentIsNotKnown) {
  const auto file = ParseFlightFile(
      Json::parse(
          R"({"dtrain": {"rank": 0}, "entries": [{"process_group": ["g"], "dtrain": {}}]})"),
      "x");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->entries.at(0).step, -1);
  EXPECT_EQ(file->entries.at(0).sequence, 0U);
  EXPECT_EQ(file->entries.at(0).started, 0);
  const Json trace = ChromeTrace({*file}, AlignClocks({*file}));
  EXPECT_TRUE(CallsOf(trace, 0).empty()) << "it has not started";
}

}  // namespace
}  // namespace dtrain::launcher::flight_trace_test
