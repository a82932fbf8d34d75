// The staged group over the fake device: real host groups between processes, copies on fake
// streams.
#include "comm/nccl/staged_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "comm/nccl/fake/fake_cuda.h"
#include "tests/comm/nccl/graph_of_buckets.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm::staged_group_test {
namespace {

using dtrain::testing::Cluster;
using dtrain::testing::RankContext;
using ::testing::HasSubstr;

struct Rank {
  explicit Rank(RankContext& context)
      : rank(context.rank), size(context.size), store(context.store) {}
  // `compute` is the compute stream; null stands for the host's.
  absl::Status Open(RankContext& context, CudaStream* compute = nullptr,
                    absl::Duration timeout = absl::Seconds(30)) {
    GroupOptions host_options = context.group_options();
    host_options.timeout = timeout;
    DT_ASSIGN_OR_RETURN(auto host, CreateHostGroup(context.store, host_options));
    StagedGroupOptions options;
    options.cuda = &cuda;
    options.compute_stream = compute != nullptr ? compute : cuda.host_stream();
    DT_ASSIGN_OR_RETURN(group, StagedGroup::Create(std::move(host), options));
    return absl::OkStatus();
  }
  float* Floats(size_t count, float first) {
    void* data = nullptr;
    EXPECT_EQ(cuda.MallocDevice(&data, count * sizeof(float)), CudaResult::kSuccess);
    for (size_t i = 0; i < count; ++i) {
      static_cast<float*>(data)[i] = first + static_cast<float>(i);
    }
    return static_cast<float*>(data);
  }
  static Buffer Of(float* data, size_t count) {
    return {data, count * sizeof(float), DType::kFloat32, {DeviceKind::kCuda, 0}};
  }
  int rank;
  int size;
  Store* store;
  FakeCuda cuda;
  std::unique_ptr<StagedGroup> group;
};

absl::Status Expect(bool right, const char* what) {
  return right ? absl::OkStatus() : absl::InternalError(what);
}

void RunOn(int size, const std::function<absl::Status(Rank&)>& body) {
  const auto results = dtrain::testing::RunRanks({.size = size}, [&](RankContext& context) {
    Rank rank(context);
    absl::Status status = rank.Open(context);
    if (status.ok()) {
      status = body(rank);
    }
    rank.group.reset();
    status.Update(Expect(rank.cuda.violations().empty(), "CUDA was used wrongly"));
    return status;
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

TEST(StagedGroupTest, CollectivesGiveTheHostGroupsResultsBehindAJoin) {
  for (const int size : {1, 2, 3}) {
    RunOn(size, [](Rank& self) -> absl::Status {
      const size_t n = 1000;
      const auto ranks = static_cast<size_t>(self.size);
      for (int round = 0; round < 20; ++round) {  // Pinned memory is used again.
        float* const sum = self.Floats(n, static_cast<float>(self.rank));
        float* const parts = self.Floats(n * ranks, static_cast<float>(self.rank));
        float* const all = self.Floats(n * ranks, -1);
        float* const own = parts + n * static_cast<size_t>(self.rank);
        DT_RETURN_IF_ERROR(self.group->AllReduce(Rank::Of(sum, n), ReduceOp::kSum).status());
        DT_RETURN_IF_ERROR(
            self.group->ReduceScatter(Rank::Of(parts, n * ranks), Rank::Of(own, n), ReduceOp::kSum)
                .status());
        DT_RETURN_IF_ERROR(
            self.group->AllGather(Rank::Of(own, n), Rank::Of(all, n * ranks)).status());
        float doubled = 0;
        DT_RETURN_IF_ERROR(self.group->Then([&](CudaStream* stream) {
          EXPECT_EQ(self.cuda.Enqueue(stream, [&doubled, sum] { doubled = 2 * sum[1]; }),
                    CudaResult::kSuccess);
          return absl::OkStatus();
        }));
        DT_RETURN_IF_ERROR(self.group->JoinStream(self.cuda.host_stream()));
        const auto total = static_cast<float>(self.size * (self.size - 1) / 2);
        for (size_t i = 0; i < n; ++i) {
          const float index = static_cast<float>(i);
          const auto count = static_cast<float>(self.size);
          DT_RETURN_IF_ERROR(Expect(sum[i] == total + count * index, "all-reduce"));
          for (size_t r = 0; r < ranks; ++r) {
            const float expected = total + count * (index + static_cast<float>(r * n));
            DT_RETURN_IF_ERROR(Expect(all[r * n + i] == expected, "reduce-scatter, all-gather"));
          }
        }
        DT_RETURN_IF_ERROR(Expect(doubled == 2 * sum[1], "what was queued behind"));
      }
      return absl::OkStatus();
    });
  }
}

TEST(StagedGroupTest, CallsWaitForTheirPlacesInAGraphAndNotForItsEnd) {
  const auto results =
      dtrain::testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
        Rank self(context);
        const size_t n = 1000;
        std::vector<float*> buckets;
        for (int b = 0; b < 3; ++b) {
          buckets.push_back(self.Floats(n, -1));
        }
        int launches = 0;
        GraphOfBuckets graph(&self.cuda, buckets.size(), [&](size_t b) {
          std::fill(buckets[b], buckets[b] + n,
                    static_cast<float>(10 * launches + static_cast<int>(b) + self.rank));
        });
        DT_RETURN_IF_ERROR(self.Open(context, graph.stream()));
        for (launches = 1; launches <= 3; ++launches) {
          graph.Launch();
          std::vector<Work> works;
          for (size_t b = 0; b < buckets.size(); ++b) {
            DT_ASSIGN_OR_RETURN(works.emplace_back(),
                                self.group->AllReduce(Rank::Of(buckets[b], n), ReduceOp::kSum,
                                                      {.after = graph.place(b)}));
          }
          for (const Work& work : works) {
            DT_RETURN_IF_ERROR(work.Wait(Deadline::After(absl::Seconds(20))));
          }
          DT_RETURN_IF_ERROR(Expect(graph.End(), "a call waited for the graph's end"));
          DT_RETURN_IF_ERROR(self.group->JoinStream(graph.stream()));
          (void)self.cuda.StreamSynchronize(graph.stream());
          for (size_t b = 0; b < buckets.size(); ++b) {
            const auto sum = static_cast<float>(2 * (10 * launches + static_cast<int>(b)) + 1);
            DT_RETURN_IF_ERROR(Expect(buckets[b][0] == sum && buckets[b][n - 1] == sum, "sums"));
          }
        }
        self.group.reset();
        return Expect(self.cuda.violations().empty(), "CUDA was used wrongly");
      });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

// The worker comes to the first call when the second has been made too; the compute stream reaches
// the second one's place only after the first has ended.
TEST(StagedGroupTest, ACallWaitsForItsOwnPlaceAndNotForThoseOfLaterCalls) {
  const auto results =
      dtrain::testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
        Rank self(context);
        CudaStream* compute = nullptr;
        (void)self.cuda.StreamCreate(&compute, false);
        DT_RETURN_IF_ERROR(self.Open(context, compute));
        const size_t n = 1000;
        float* const first = self.Floats(n, -1);
        float* const second = self.Floats(n, -1);
        const auto fill = [&](float* bucket, float value) {
          (void)self.cuda.Enqueue(compute, [=] { std::fill(bucket, bucket + n, value); });
        };
        std::atomic<bool> both_made{false};
        std::atomic<bool> first_ended{false};
        DT_RETURN_IF_ERROR(self.group->Then([&](CudaStream*) {
          while (!both_made) {
            absl::SleepFor(absl::Milliseconds(1));
          }
          return absl::OkStatus();
        }));
        fill(first, 1);
        DT_ASSIGN_OR_RETURN(const Work one,
                            self.group->AllReduce(Rank::Of(first, n), ReduceOp::kSum));
        (void)self.cuda.Enqueue(compute, [&] {
          const Deadline bound = Deadline::After(absl::Seconds(20));
          while (!first_ended && !bound.Expired()) {
            absl::SleepFor(absl::Milliseconds(1));
          }
        });
        fill(second, 2);
        DT_ASSIGN_OR_RETURN(const Work two,
                            self.group->AllReduce(Rank::Of(second, n), ReduceOp::kSum));
        both_made = true;
        const absl::Status waited = one.Wait(Deadline::After(absl::Seconds(10)));
        first_ended = true;
        DT_RETURN_IF_ERROR(two.Wait(Deadline::After(absl::Seconds(30))));
        DT_RETURN_IF_ERROR(waited);
        DT_RETURN_IF_ERROR(self.group->JoinStream(compute));
        (void)self.cuda.StreamSynchronize(compute);
        DT_RETURN_IF_ERROR(Expect(first[0] == 2 && second[n - 1] == 4, "sums"));
        self.group.reset();
        (void)self.cuda.StreamDestroy(compute);
        DT_RETURN_IF_ERROR(Expect(self.cuda.live_handles() == 2, "handles were left"));
        return Expect(self.cuda.violations().empty(), "CUDA was used wrongly");
      });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

TEST(StagedGroupTest, ARankThatGivesANegativeColourIsInNoGroup) {
  RunOn(3, [](Rank& self) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto split,
                        self.group->SplitGroup(self.store, self.rank == 1 ? -1 : 0, 0, "split"));
    if (self.rank == 1) {
      return Expect(split == nullptr, "a group without a colour");
    }
    DT_RETURN_IF_ERROR(Expect(split != nullptr && split->size() == 2, "a wrong size"));
    float* const data = self.Floats(1, 1);
    DT_RETURN_IF_ERROR(split->AllReduce(Rank::Of(data, 1), ReduceOp::kSum).status());
    DT_RETURN_IF_ERROR(split->JoinStream(self.cuda.host_stream()));
    return Expect(data[0] == 2, "the sum of two");
  });
}

TEST(StagedGroupTest, AnErrorOnTheHostBreaksTheGroupWithItsReason) {
  RunOn(2, [](Rank& self) -> absl::Status {
    // The ranks disagree about the size.
    const size_t n = self.rank == 0 ? 10 : 20;
    float* const data = self.Floats(n, 0);
    DT_RETURN_IF_ERROR(self.group->AllReduce(Rank::Of(data, n), ReduceOp::kSum).status());
    const absl::Status joined = self.group->JoinStream(self.cuda.host_stream());
    DT_RETURN_IF_ERROR(Expect(!joined.ok() && !self.group->Health().ok(), "no error"));
    return Expect(!self.group->AllReduce(Rank::Of(data, n), ReduceOp::kSum).ok(), "went on");
  });
}

// Runs until an error. Announces "readyR" after the first rounds and "endedR" at the end.
absl::Status ReduceUntilAnError(RankContext& context, absl::Duration timeout, int rounds) {
  Rank self(context);
  DT_RETURN_IF_ERROR(self.Open(context, nullptr, timeout));
  self.group->SetStep(17);
  constexpr size_t kCount = 1000;
  float* const data = self.Floats(kCount, 0);
  for (int round = 0; round < rounds; ++round) {
    std::fill_n(data, kCount, static_cast<float>(self.rank + 1));
    absl::Status status =
        self.group->AllReduce(Rank::Of(data, kCount), ReduceOp::kSum, {.name = "bucket 7"})
            .status();
    status.Update(self.group->JoinStream(self.cuda.host_stream()));
    if (!status.ok()) {
      DT_RETURN_IF_ERROR(context.Announce(absl::StrCat("ended", self.rank)));
      return status;
    }
    DT_RETURN_IF_ERROR(Expect(data[kCount - 1] == 6, "a wrong sum"));
    if (round == 3) {
      DT_RETURN_IF_ERROR(context.Announce(absl::StrCat("ready", self.rank)));
    }
  }
  return self.group->Barrier(Deadline::Infinite());
}

std::unique_ptr<Cluster> StartReducing(absl::Duration timeout, int rounds) {
  auto cluster = Cluster::Start({.size = 3}, [timeout, rounds](RankContext& context) {
    return ReduceUntilAnError(context, timeout, rounds);
  });
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE((*cluster)->Await(absl::StrCat("ready", rank)).ok());
  }
  return *std::move(cluster);
}

constexpr int kNoEnd = 1 << 30;

TEST(StagedGroupFaultsTest, AKilledRankIsNamedSoon) {
  const auto cluster = StartReducing(absl::Seconds(30), kNoEnd);
  const std::string pid = absl::StrCat("pid ", cluster->pid(1));
  cluster->Kill(1);
  const auto results = cluster->Join();
  for (const size_t rank : {0, 2}) {
    EXPECT_EQ(results[rank].status.code(), absl::StatusCode::kUnavailable) << results[rank].status;
    EXPECT_THAT(std::string(results[rank].status.message()), HasSubstr(pid));
    EXPECT_LT(results[rank].duration, absl::Seconds(20));
  }
}

TEST(StagedGroupFaultsTest, AStoppedRankIsNamedAtTheTimeout) {
  const auto cluster = StartReducing(absl::Seconds(2), kNoEnd);
  const std::string pid = absl::StrCat("pid ", cluster->pid(1));
  cluster->Stop(1);
  ASSERT_TRUE(cluster->Await("ended0").ok());
  ASSERT_TRUE(cluster->Await("ended2").ok());
  cluster->Kill(1);  // Join would wait for it.
  const auto results = cluster->Join();
  for (const size_t rank : {0, 2}) {
    const absl::Status& status = results[rank].status;
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    for (const std::string& part : {pid, std::string("bucket 7"), std::string("step 17")}) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
  }
}

TEST(StagedGroupFaultsTest, ASlowRankDelaysButBreaksNothing) {
  const auto cluster = StartReducing(absl::Seconds(30), 30);
  cluster->Slow(1, 4);
  for (const auto& result : cluster->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

TEST(StagedGroupTest, HostMemoryIsRefused) {
  RunOn(1, [](Rank& self) -> absl::Status {
    float value = 0;
    const auto work =
        self.group->AllReduce({&value, sizeof(value), DType::kFloat32, {}}, ReduceOp::kSum);
    return Expect(absl::IsInvalidArgument(work.status()), "host memory was taken");
  });
}

TEST(StagedGroupTest, SplitsIntoGroupsThatReduceByColourBesideIt) {
  RunOn(4, [](Rank& self) -> absl::Status {
    float* const data = self.Floats(100, static_cast<float>(self.rank));
    DT_RETURN_IF_ERROR(
        self.group->AllReduce(Rank::Of(data, 100), ReduceOp::kSum).status());  // It is under way.
    DT_ASSIGN_OR_RETURN(const auto half,
                        self.group->SplitGroup(self.store, self.rank % 2, -self.rank, "half"));
    DT_RETURN_IF_ERROR(Expect(half->size() == 2, "a wrong size"));
    DT_RETURN_IF_ERROR(Expect(half->rank() == (self.rank < 2 ? 1 : 0), "a wrong rank"));
    float* const more = self.Floats(100, static_cast<float>(self.rank));
    DT_RETURN_IF_ERROR(half->AllReduce(Rank::Of(more, 100), ReduceOp::kSum).status());
    DT_RETURN_IF_ERROR(half->JoinStream(self.cuda.host_stream()));
    DT_RETURN_IF_ERROR(self.group->JoinStream(self.cuda.host_stream()));
    const auto sum = static_cast<float>(self.rank % 2 == 0 ? 0 + 2 : 1 + 3);
    DT_RETURN_IF_ERROR(Expect(more[7] == sum + 14, "the small group's sum"));
    return Expect(data[7] == 6 + 28, "the whole group's sum");
  });
}

}  // namespace
}  // namespace dtrain::comm::staged_group_test
