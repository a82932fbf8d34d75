// Reduce-scatters that the NCCL group gives to NCCL in one call: their cost for the host, their
// bits, their records and their failures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "tests/comm/nccl/forked_ranks.h"
#include "tests/comm/nccl/graph_of_buckets.h"

namespace dtrain::comm::nccl_coalesced_test {
namespace {

using testing::Each;
using testing::Gt;
using testing::HasSubstr;

constexpr size_t kCalls = 5;
constexpr int kPolls = 40;  // NCCL gives "in progress" so often after a call.

// The calls are in place, so that each rank's part stays where it is, and have different sizes.
std::vector<ReduceScatterCall> MakeCalls(FakeRank& self, const CollectiveOptions& options = {}) {
  std::vector<ReduceScatterCall> calls;
  for (size_t i = 0; i < kCalls; ++i) {
    const auto part_bytes = (1000 + 8 * i) * sizeof(float);
    const size_t bytes = part_bytes * static_cast<size_t>(self.size);
    auto* const data = static_cast<char*>(self.Allocate(bytes));
    const Device device{DeviceKind::kCuda, 0};
    ReduceScatterCall call{.input = {data, bytes, DType::kFloat32, device},
                           .output = {data + static_cast<size_t>(self.rank) * part_bytes,
                                      part_bytes, DType::kFloat32, device},
                           .options = options};
    call.options.name = absl::StrCat("bucket ", i);
    calls.push_back(call);
  }
  return calls;
}

// Sums of these values are rounded.
void Fill(FakeRank& self, const std::vector<ReduceScatterCall>& calls) {
  for (const ReduceScatterCall& call : calls) {
    auto* const values = static_cast<float*>(call.input.data);
    for (size_t i = 0; i < call.input.count(); ++i) {
      values[i] = std::sin(static_cast<float>(i) * 0.37F + static_cast<float>(self.rank));
    }
  }
}

std::vector<float> ResultsOf(const std::vector<ReduceScatterCall>& calls) {
  std::vector<float> results;
  for (const ReduceScatterCall& call : calls) {
    const auto* const values = static_cast<const float*>(call.output.data);
    results.insert(results.end(), values, values + call.output.count());
  }
  return results;
}

Json EntriesOf(NcclGroup& group) {
  const auto record = ParseJson(group.FlightRecord(), "flight record");
  EXPECT_TRUE(record.ok()) << record.status();
  return record.ok() ? (*record)["entries"] : Json::array();
}

TEST(NcclCoalesced, TheHostMakesOneCallAndWaitsOnce) {
  RunRanks(
      2,
      [](FakeRank& self) {
        auto group = self.MakeGroup();
        const auto calls = MakeCalls(self);
        Fill(self, calls);
        const int jobs = self.nccl.jobs();
        const int polls = self.nccl.polls();
        ASSERT_TRUE(group->ReduceScatterCoalesced(calls, ReduceOp::kSum).ok());
        EXPECT_EQ(self.nccl.jobs() - jobs, 1);
        EXPECT_LE(self.nccl.polls() - polls, kPolls);  // Calls one by one need 200.
        EXPECT_EQ(group->sequence(), kCalls);
        ASSERT_TRUE(group->Barrier(Deadline::After(absl::Seconds(30))).ok());
        const Json entries = EntriesOf(*group);
        ASSERT_EQ(entries.size(), kCalls + 1);
        for (size_t i = 0; i < kCalls; ++i) {
          EXPECT_EQ(entries[i]["dtrain"]["name"], absl::StrCat("bucket ", i));
          EXPECT_EQ(entries[i]["collective_seq_id"], i + 1);
          EXPECT_EQ(entries[i]["state"], "completed");
        }
        group.reset();
        self.ExpectClean();
      },
      [](int) { return FakeNcclFaults{.polls_in_progress = kPolls}; });
}

// Calls that NCCL cannot do together go one by one.
TEST(NcclCoalesced, BitsAreThoseOfSingleCalls) {
  for (const int size : {1, 2, 3}) {
    for (const bool deterministic : {false, true}) {
      for (const Wire wire : {Wire::kSameAsBuffer, Wire::kBFloat16}) {
        RunRanks(size, [&](FakeRank& self) {
          self.options.group.deterministic = deterministic;
          auto group = self.MakeGroup();
          const auto calls = MakeCalls(self, {.wire = wire});
          for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
            Fill(self, calls);
            for (const ReduceScatterCall& call : calls) {
              ASSERT_TRUE(group->ReduceScatter(call.input, call.output, op, call.options).ok());
            }
            ASSERT_TRUE(group->Barrier(Deadline::After(absl::Seconds(30))).ok());
            const std::vector<float> expected = ResultsOf(calls);
            Fill(self, calls);
            ASSERT_TRUE(group->ReduceScatterCoalesced(calls, op).ok());
            ASSERT_TRUE(group->Barrier(Deadline::After(absl::Seconds(30))).ok());
            EXPECT_EQ(ResultsOf(calls), expected);
          }
          group.reset();
          self.ExpectClean();
        });
      }
    }
  }
}

TEST(NcclCoalesced, SumsOfSquaresAreThoseOfSingleCalls) {
  RunRanks(2, [](FakeRank& self) {
    auto group = self.MakeGroup();
    auto calls = MakeCalls(self);
    std::vector<double> sums(kCalls, -1);
    for (size_t i = 0; i < kCalls; ++i) {
      calls[i].options.sum_of_squares = &sums[i];
    }
    Fill(self, calls);
    for (const ReduceScatterCall& call : calls) {
      ASSERT_TRUE(group->ReduceScatter(call.input, call.output, ReduceOp::kSum, call.options).ok());
    }
    ASSERT_TRUE(group->Barrier(Deadline::After(absl::Seconds(30))).ok());
    const std::vector<double> expected = sums;
    EXPECT_THAT(expected, Each(Gt(0)));
    std::fill(sums.begin(), sums.end(), -1);
    Fill(self, calls);
    ASSERT_TRUE(group->ReduceScatterCoalesced(calls, ReduceOp::kSum).ok());
    ASSERT_TRUE(group->Barrier(Deadline::After(absl::Seconds(30))).ok());
    EXPECT_EQ(sums, expected);
    group.reset();
    self.ExpectClean();
  });
}

TEST(NcclCoalesced, TheyWaitForTheirPlacesAndNotForTheGraphsEnd) {
  RunRanks(2, [](FakeRank& self) {
    auto calls = MakeCalls(self);
    {
      GraphOfBuckets graph(&self.cuda, kCalls, [&](size_t b) {
        std::fill_n(static_cast<float*>(calls[b].input.data), calls[b].input.count(),
                    static_cast<float>(b + 1));
      });
      self.options.compute_stream = graph.stream();
      auto group = self.MakeGroup();
      for (size_t b = 0; b < kCalls; ++b) {
        calls[b].options.after = graph.place(b);
      }
      graph.Launch();
      ASSERT_TRUE(group->ReduceScatterCoalesced(calls, ReduceOp::kSum).ok());
      Buffer one = calls[0].input;  // A call of its own tells when those before it have ended.
      const auto last = group->AllReduce(one, ReduceOp::kMax, {.after = graph.place(0)});
      ASSERT_TRUE(last.ok()) << last.status();
      ASSERT_TRUE(last->Wait(Deadline::After(absl::Seconds(20))).ok());
      for (size_t b = 1; b < kCalls; ++b) {
        const auto* const values = static_cast<const float*>(calls[b].output.data);
        EXPECT_THAT(std::vector<float>(values, values + calls[b].output.count()),
                    Each(2 * static_cast<float>(b + 1)));
      }
      EXPECT_TRUE(graph.End()) << "a call waited for the graph's end";
      group.reset();
    }
    self.ExpectClean();
  });
}

// NCCL plans the calls of a group together, so the same calls one by one do not match them.
TEST(NcclCoalesced, RanksThatCoalesceOtherwiseHangAndEachRecordHasTheError) {
  RunRanks(2, [](FakeRank& self) {
    self.options.group.timeout = absl::Seconds(3);
    auto group = self.MakeGroup();
    const auto calls = MakeCalls(self);
    if (self.rank == 0) {
      ASSERT_TRUE(group->ReduceScatterCoalesced(calls, ReduceOp::kSum).ok());
    } else {
      for (const ReduceScatterCall& call : calls) {
        ASSERT_TRUE(
            group->ReduceScatter(call.input, call.output, ReduceOp::kSum, call.options).ok());
      }
    }
    const absl::Status status = group->Barrier(Deadline::After(absl::Seconds(30)));
    EXPECT_THAT(std::string(status.message()), HasSubstr("bucket 0"));
    const Json entries = EntriesOf(*group);
    ASSERT_EQ(entries.size(), kCalls + 1);
    for (const Json& entry : entries) {
      EXPECT_NE(entry["state"], "completed");
      EXPECT_THAT(entry["dtrain"]["error"].get<std::string>(), HasSubstr("bucket 0"));
    }
    group.reset();
    self.ExpectClean();
  });
}

TEST(NcclCoalesced, ACallThatNcclDoesNotTakeEndsTheGroupWithAReportOfAll) {
  RunRanks(1, [](FakeRank& self) {
    self.options.group.timeout = absl::Seconds(1);
    auto group = self.MakeGroup();
    const auto calls = MakeCalls(self);
    self.nccl.HoldCalls(true);
    const absl::Status status = group->ReduceScatterCoalesced(calls, ReduceOp::kSum);
    self.nccl.HoldCalls(false);
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"bucket 0\" and 4 more in one call"));
    const Json entries = EntriesOf(*group);
    ASSERT_EQ(entries.size(), kCalls);
    for (const Json& entry : entries) {
      EXPECT_THAT(entry["dtrain"]["error"].get<std::string>(), HasSubstr("in progress"));
    }
    EXPECT_FALSE(group->Health().ok());
    group.reset();
  });
}

TEST(NcclCoalesced, AWrongBufferIsRefusedBeforeAnythingIsQueued) {
  RunRanks(1, [](FakeRank& self) {
    auto group = self.MakeGroup();
    auto calls = MakeCalls(self);
    calls.back().output.bytes -= sizeof(float);
    const int jobs = self.nccl.jobs();
    EXPECT_EQ(group->ReduceScatterCoalesced(calls, ReduceOp::kSum).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(self.nccl.jobs(), jobs);
    EXPECT_TRUE(group->Health().ok());
    EXPECT_TRUE(group->ReduceScatterCoalesced({}, ReduceOp::kSum).ok());
    group.reset();
    self.ExpectClean();
  });
}

}  // namespace
}  // namespace dtrain::comm::nccl_coalesced_test
