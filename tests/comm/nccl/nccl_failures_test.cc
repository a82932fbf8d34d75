// The end of an NCCL group when ranks disagree, NCCL reports an error, a rank is gone or a thread
// aborts. It comes within its bound, with a report of everything that is known, and leaves nothing
// behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/json.h"
#include "comm/nccl/nccl_arrivals.h"
#include "tests/comm/nccl/forked_ranks.h"

namespace dtrain::comm::nccl_failures_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr size_t kCount = 5000;

Buffer MakeBuffer(FakeRank& self, size_t count = kCount) {
  return {self.Allocate(count * sizeof(float)),
          count * sizeof(float),
          DType::kFloat32,
          {DeviceKind::kCuda, 0}};
}

// The status of `work`, which must come within `bound`.
absl::Status EndOf(const absl::StatusOr<Work>& work, absl::Duration bound) {
  if (!work.ok()) {
    return work.status();
  }
  const absl::Time start = absl::Now();
  const absl::Status status = work->Wait(Deadline::After(bound));
  EXPECT_LT(absl::Now() - start, bound);
  return status;
}

void ExpectBroken(NcclGroup& group, FakeRank& self) {
  const auto later = group.AllReduce(MakeBuffer(self), ReduceOp::kSum);
  EXPECT_EQ(later.status().code(), absl::StatusCode::kAborted) << later.status();
}

TEST(NcclFailures, ARankThatStaysAwayIsNamedAtTheDeadline) {
  RunRanks(3, [](FakeRank& self) {
    self.options.group.timeout = absl::Seconds(3);
    auto group = self.MakeGroup();
    CollectiveOptions options;
    options.name = "bucket 7";
    if (self.rank != 1) {
      auto work = group->AllReduce(MakeBuffer(self), ReduceOp::kSum, options);
      const absl::Status status = EndOf(work, absl::Seconds(30));
      // The first to see the deadline tells the other, which then ends with Aborted.
      EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsAborted(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("did not arrive: rank 1"), HasSubstr("bucket 7"),
                        HasSubstr("all_reduce of 5000 fp32 (sum)"), HasSubstr(" 3s;")));
      ExpectBroken(*group, self);
      group.reset();
      EXPECT_EQ(self.nccl.aborts(), 1);
    } else {
      // It stays until its peers gave up, so that they cannot take it for a rank that died.
      (void)self.store->Get("nccl/world/0/abort", Deadline::After(absl::Seconds(50)));
    }
    group.reset();
    self.ExpectClean();
  });
}

TEST(NcclFailures, TheFlightRecordHoldsTheCallsAndTheFailure) {
  RunRanks(2, [](FakeRank& self) {
    self.options.group.timeout = absl::Seconds(3);
    auto group = self.MakeGroup();
    group->SetStep(12);
    CollectiveOptions options;
    options.name = "bucket 7";
    EXPECT_TRUE(
        EndOf(group->AllReduce(MakeBuffer(self), ReduceOp::kSum, options), absl::Seconds(30)).ok());
    if (self.rank == 0) {  // Its peer makes no second call.
      EXPECT_FALSE(
          EndOf(group->AllReduce(MakeBuffer(self), ReduceOp::kSum, options), absl::Seconds(30))
              .ok());
    } else {
      (void)self.store->Get("nccl/world/0/abort", Deadline::After(absl::Seconds(50)));
    }
    const auto record = ParseJson(group->FlightRecord(), "flight record");
    ASSERT_TRUE(record.ok()) << record.status();
    const Json& entries = (*record)["entries"];
    ASSERT_EQ(entries.size(), self.rank == 0 ? 2U : 1U);
    EXPECT_EQ(entries[0]["collective_seq_id"], 1);
    EXPECT_EQ(entries[0]["state"], "completed");
    EXPECT_EQ(entries[0]["profiling_name"], "nccl:all_reduce");
    EXPECT_EQ(entries[0]["dtrain"]["name"], "bucket 7");
    EXPECT_EQ(entries[0]["dtrain"]["step"], 12);
    if (self.rank == 0) {
      EXPECT_EQ(entries[1]["collective_seq_id"], 2);
      EXPECT_NE(entries[1]["state"], "completed");
      EXPECT_THAT(entries[1]["dtrain"]["error"].get<std::string>(), HasSubstr("bucket 7"));
    }
    group.reset();
    self.ExpectClean();
  });
}

TEST(NcclFailures, RanksThatDisagreeHangAndTheReportShowsBothCalls) {
  RunRanks(2, [](FakeRank& self) {
    self.options.group.timeout = absl::Seconds(3);
    auto group = self.MakeGroup();
    const size_t count = self.rank == 0 ? 1000 : 999;
    const absl::Status status =
        EndOf(group->AllReduce(MakeBuffer(self, count), ReduceOp::kSum), absl::Seconds(30));
    EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsAborted(status)) << status;
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(HasSubstr("the ranks disagree"), HasSubstr("1000 fp32"), HasSubstr("999 fp32")));
    ExpectBroken(*group, self);
    group.reset();
    self.ExpectClean();
  });
}

TEST(NcclFailures, OneHungCollectiveEndsTheOthersBehindItToo) {
  const auto faults = [](int rank) {
    FakeNcclFaults injected;
    injected.hanging_operation = rank == 0 ? 1 : -1;
    return injected;
  };
  RunRanks(
      2,
      [](FakeRank& self) {
        self.options.group.timeout = absl::Seconds(3);
        auto group = self.MakeGroup();
        auto first = group->AllReduce(MakeBuffer(self), ReduceOp::kSum);
        auto second = group->AllReduce(MakeBuffer(self), ReduceOp::kSum);
        auto third = group->AllReduce(MakeBuffer(self), ReduceOp::kSum);
        EXPECT_TRUE(EndOf(first, absl::Seconds(30)).ok());
        const absl::Status status = EndOf(second, absl::Seconds(30));
        EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsAborted(status)) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr("every rank arrived"));
        EXPECT_FALSE(EndOf(third, absl::Seconds(30)).ok());
        group.reset();
        self.ExpectClean();
      },
      faults);
}

TEST(NcclFailures, AnAsynchronousErrorAbortsWithinSecondsOnEveryRank) {
  const auto faults = [](int rank) {
    FakeNcclFaults injected;
    injected.async_error_after = rank == 0 ? 2 : -1;
    return injected;
  };
  RunRanks(
      2,
      [](FakeRank& self) {
        // The deadline is far: only the error, and rank 0's word of it, can end this.
        auto group = self.MakeGroup();
        absl::Status status;
        for (int i = 0; i < 3 && status.ok(); ++i) {
          status = EndOf(group->AllReduce(MakeBuffer(self), ReduceOp::kSum), absl::Seconds(30));
          EXPECT_EQ(status.ok(), i < 2) << i << " " << status;
        }
        EXPECT_EQ(status.code(), self.rank == 0 ? status.code() : absl::StatusCode::kAborted);
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr("remote process exited or there was a network error"));
        if (self.rank == 1) {
          EXPECT_THAT(std::string(status.message()), HasSubstr("a peer gave up: rank 0"));
        }
        group.reset();
        self.ExpectClean();
      },
      faults);
}

TEST(NcclFailures, AbortFromAnotherThreadEndsAWaitHereAndAtThePeer) {
  RunRanks(2, [](FakeRank& self) {
    auto group = self.MakeGroup();
    absl::StatusOr<Work> work = Work();
    if (self.rank == 1) {
      work = group->AllReduce(MakeBuffer(self), ReduceOp::kSum);  // Rank 0 never joins.
      EXPECT_THAT(std::string(EndOf(work, absl::Seconds(30)).message()),
                  HasSubstr("rank 0: NCCL group world (epoch 0, rank 0 of 2): aborted: a test"));
    } else {
      CudaStream* compute = nullptr;
      work = group->Receive(MakeBuffer(self), 1);  // Nobody sends.
      std::thread other([&] { group->Abort("a test"); });
      const absl::Status status = EndOf(work, absl::Seconds(30));
      other.join();
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
      EXPECT_THAT(std::string(status.message()), HasSubstr("aborted: a test"));
      EXPECT_EQ(compute, nullptr);
    }
    ExpectBroken(*group, self);
    group.reset();
    self.ExpectClean();
  });
}

TEST(NcclFailures, AKilledRankIsNamedByTheOthers) {
  RunRanks(2,
           [](FakeRank& self) {
             self.options.group.timeout = absl::Seconds(3);
             auto group = self.MakeGroup();
             if (self.rank == 1) {
               raise(SIGKILL);
             }
             const absl::Status status =
                 EndOf(group->AllReduce(MakeBuffer(self), ReduceOp::kSum), absl::Seconds(30));
             EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
             EXPECT_THAT(std::string(status.message()), HasSubstr("did not arrive: rank 1"));
             group.reset();
             self.ExpectClean();
           },
           /*faults=*/{}, {.rank = 1});
}

TEST(NcclFailures, AStoppedRankIsNamedWithHostPidAndStepByTheOthers) {
  RunRanks(
      3,
      [](FakeRank& self) {
        self.options.group.timeout = absl::Seconds(3);
        auto group = self.MakeGroup();
        group->SetStep(17);
        EXPECT_TRUE(
            EndOf(group->AllReduce(MakeBuffer(self), ReduceOp::kSum), absl::Seconds(30)).ok());
        if (self.rank == 1) {
          (void)self.store->Set("pid", absl::StrCat(getpid()), Deadline::Infinite());
          raise(SIGSTOP);
        }
        const std::string pid = *self.store->Get("pid", Deadline::After(absl::Seconds(30)));
        CollectiveOptions options;
        options.name = "bucket 7";
        const absl::Status status =
            EndOf(group->AllReduce(MakeBuffer(self), ReduceOp::kSum, options), absl::Seconds(30));
        EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsAborted(status)) << status;
        EXPECT_THAT(std::string(status.message()),
                    AllOf(HasSubstr("did not arrive: rank 1 (host "), HasSubstr(", pid " + pid),
                          HasSubstr("\"bucket 7\" in step 17 (collective 2)"),
                          HasSubstr("not finished after 3s")));
        EXPECT_THAT(std::string(status.message()), Not(HasSubstr("rank 0 (host")));
        EXPECT_THAT(std::string(status.message()), Not(HasSubstr("rank 2 (host")));
        // The last rank that gets here kills the stopped one, for which the test would wait.
        if (*self.store->Add("through", 1, Deadline::After(absl::Seconds(30))) == 2) {
          kill(std::stoi(pid), SIGKILL);
        }
        group.reset();
        self.ExpectClean();
      },
      /*faults=*/{}, {.rank = 1});
}

// Makes `rounds` all-reduces of one name.
absl::Status ReduceRounds(NcclGroup& group, FakeRank& self, int rounds) {
  CollectiveOptions options;
  options.name = "bucket 7";
  const Buffer buffer = MakeBuffer(self);
  absl::Status status;
  for (int round = 0; round < rounds && status.ok(); ++round) {
    status = EndOf(group.AllReduce(buffer, ReduceOp::kSum, options), absl::Seconds(30));
  }
  return status;
}

TEST(NcclFailures, AfterTheFirstCallsALateRankIsNamedAtTheLearntTimeout) {
  RunRanks(2, [](FakeRank& self) {
    self.options.group.timeout = absl::Minutes(5);
    self.options.group.timeout_min = absl::Seconds(1);
    auto group = self.MakeGroup();
    EXPECT_TRUE(ReduceRounds(*group, self, 12).ok());
    if (self.rank == 0) {
      const absl::Status status = ReduceRounds(*group, self, 1);
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("did not arrive: rank 1"), Not(HasSubstr("after 5m"))));
    } else {
      (void)self.store->Get("nccl/world/0/abort", Deadline::After(absl::Seconds(50)));
    }
    group.reset();
    self.ExpectClean();
  });
}

TEST(NcclFailures, ACallThatBringsADeadlineHasThatInPlaceOfTheLearntOne) {
  RunRanks(2, [](FakeRank& self) {
    self.options.group.timeout = absl::Minutes(5);
    self.options.group.timeout_min = absl::Seconds(1);
    auto group = self.MakeGroup();
    EXPECT_TRUE(ReduceRounds(*group, self, 12).ok());
    CollectiveOptions options;
    options.name = "bucket 7";
    options.deadline = Deadline::After(absl::Seconds(60));
    if (self.rank == 1) {
      absl::SleepFor(absl::Seconds(6));  // Its own work, far longer than what was learnt.
    }
    const absl::Status slow =
        EndOf(group->AllReduce(MakeBuffer(self), ReduceOp::kSum, options), absl::Seconds(60));
    EXPECT_TRUE(slow.ok()) << slow;
    if (self.rank == 0) {
      options.deadline = Deadline::After(absl::Seconds(2));
      const absl::Status status =
          EndOf(group->AllReduce(MakeBuffer(self), ReduceOp::kSum, options), absl::Seconds(30));
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("did not arrive: rank 1"));
    } else {
      (void)self.store->Get("nccl/world/0/abort", Deadline::After(absl::Seconds(50)));
    }
    group.reset();
    self.ExpectClean();
  });
}

// Rank 1 asks as a rank that is stuck does, when both groups have nothing to do any more.
TEST(NcclFailures, ARankThatIsThroughACollectiveSaysSoToOneThatAsksLater) {
  RunRanks(2, [](FakeRank& self) {
    auto group = self.MakeGroup();
    EXPECT_TRUE(ReduceRounds(*group, self, 12).ok());
    if (self.rank == 1) {
      NcclArrivals stuck(self.store, "nccl/world/0", 1, 2);
      for (const uint64_t sequence : {uint64_t{10}, uint64_t{11}}) {
        stuck.Ask(sequence);
        stuck.Announce(sequence, "a call");
      }
      for (const uint64_t sequence : {uint64_t{10}, uint64_t{11}}) {
        const auto said = self.store->Get(RankKey(absl::StrCat("nccl/world/0/late/", sequence), 0),
                                          Deadline::After(absl::Seconds(30)));
        ASSERT_TRUE(said.ok()) << said.status();
        EXPECT_EQ(*said, kThrough);
        EXPECT_THAT(stuck.Explain(sequence, "a call"), HasSubstr("every rank arrived"));
      }
      EXPECT_TRUE(self.store->Set("answered", "", Deadline::After(absl::Seconds(30))).ok());
    }
    EXPECT_TRUE(self.store->Get("answered", Deadline::After(absl::Seconds(50))).ok());
    group.reset();
    self.ExpectClean();
  });
}

TEST(NcclFailures, ALearntTimeoutCountsFromWhereTheDeviceComesToTheCollective) {
  RunRanks(2, [](FakeRank& self) {
    self.options.group.timeout = absl::Minutes(5);
    self.options.group.timeout_min = absl::Seconds(2);
    self.options.compute_stream = self.cuda.host_stream();
    auto group = self.MakeGroup();
    EXPECT_TRUE(ReduceRounds(*group, self, 12).ok());
    // Computing is queued in front of it, for far longer than the limit; the ranks come out of it
    // within the limit of each other even on a busy host.
    EXPECT_EQ(
        self.cuda.Enqueue(self.options.compute_stream, [] { absl::SleepFor(absl::Seconds(6)); }),
        CudaResult::kSuccess);
    const absl::Status status = ReduceRounds(*group, self, 1);
    EXPECT_TRUE(status.ok()) << status;
    group.reset();
    self.ExpectClean();
  });
}

TEST(NcclFailures, ASlowRankDelaysButBreaksNothing) {
  RunRanks(3, [](FakeRank& self) {
    self.options.group.timeout = absl::Seconds(30);
    self.options.group.timeout_min = absl::Seconds(5);
    self.options.compute_stream = self.cuda.host_stream();
    auto group = self.MakeGroup();
    const Buffer buffer = MakeBuffer(self);
    for (int round = 0; round < 20; ++round) {
      std::fill_n(static_cast<float*>(buffer.data), kCount, static_cast<float>(self.rank + 1));
      if (self.rank == 1) {
        absl::SleepFor(absl::Milliseconds(50));
      }
      const absl::Status status =
          EndOf(group->AllReduce(buffer, ReduceOp::kSum), absl::Seconds(30));
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(static_cast<float*>(buffer.data)[kCount - 1], 6.0F);
    }
    group.reset();
    self.ExpectClean();
  });
}

TEST(NcclFailures, InitialisationNamesTheRankThatDidNotCome) {
  RunRanks(3, [](FakeRank& self) {
    if (self.rank == 2) {
      return;
    }
    self.options.group.connect_timeout = absl::Seconds(2);
    const auto group = self.TryMakeGroup();
    EXPECT_EQ(group.status().code(), absl::StatusCode::kDeadlineExceeded) << group.status();
    EXPECT_THAT(
        std::string(group.status().message()),
        AllOf(HasSubstr("did not come: rank 2"), HasSubstr("(after 2s)"), HasSubstr("of 3")));
    self.ExpectClean();
  });
}

TEST(NcclFailures, AnInitialisationThatHangsInNcclSaysSo) {
  const auto faults = [](int) {
    FakeNcclFaults injected;
    injected.init_hangs = true;
    return injected;
  };
  RunRanks(
      2,
      [](FakeRank& self) {
        self.options.group.connect_timeout = absl::Seconds(2);
        const auto group = self.TryMakeGroup();
        EXPECT_EQ(group.status().code(), absl::StatusCode::kDeadlineExceeded) << group.status();
        EXPECT_THAT(std::string(group.status().message()),
                    AllOf(HasSubstr("in progress"), HasSubstr("NCCL_SOCKET_IFNAME")));
        self.ExpectClean();
      },
      faults);
}

TEST(NcclFailures, AGroupDestroyedWithWorkUnderWayFinishesItWithAborted) {
  RunRanks(2, [](FakeRank& self) {
    auto group = self.MakeGroup();
    if (self.rank == 0) {
      auto work = group->Receive(MakeBuffer(self), 1);  // Nobody sends.
      const absl::Time start = absl::Now();
      group.reset();
      EXPECT_LT(absl::Now() - start, absl::Seconds(30));
      EXPECT_EQ(work->Wait(Deadline::After(absl::Seconds(1))).code(), absl::StatusCode::kAborted);
    }
    group.reset();
    self.ExpectClean();
  });
}

}  // namespace
}  // namespace dtrain::comm::nccl_failures_test
