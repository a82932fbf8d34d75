// The cost of an NCCL group: its calls cost the thread that makes them, and its watchdog costs
// other threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>

#include "absl/time/clock.h"
#include "tests/comm/nccl/forked_ranks.h"
#include "tests/comm/nccl/stuck_store.h"

namespace dtrain::comm::nccl_calls_test {
namespace {

constexpr size_t kCount = 1000;

Buffer MakeBuffer(FakeRank& self, size_t count = kCount) {
  auto* const data = static_cast<float*>(self.Allocate(count * sizeof(float)));
  std::fill_n(data, count, 1.0F);
  return {data, count * sizeof(float), DType::kFloat32, {DeviceKind::kCuda, 0}};
}

// How often the calling thread has slept.
int64_t Sleeps() {
  rusage usage{};
  EXPECT_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
  return usage.ru_nvcsw;
}

// A non-blocking NCCL takes some 50 us for a call, on a thread that it starts for it.
TEST(NcclCalls, ACallThatNcclSoonTakesDoesNotPutItsThreadToSleep) {
  RunRanks(
      2,
      [](FakeRank& self) {
        auto group = self.MakeGroup();
        const Buffer buffer = MakeBuffer(self);
        constexpr int kCalls = 50;
        const int64_t before = Sleeps();
        Work last;
        for (int i = 0; i < kCalls; ++i) {
          auto work = group->AllReduce(buffer, ReduceOp::kMax);
          ASSERT_TRUE(work.ok()) << work.status();
          last = *work;
        }
        // Locks that other threads hold may cost a few; a sleep between polls would be 40 a call.
        EXPECT_LT(Sleeps() - before, 10 * kCalls);
        ASSERT_TRUE(last.Wait(Deadline::After(absl::Seconds(30))).ok());
        group.reset();
        self.ExpectClean();
      },
      [](int) { return FakeNcclFaults{.polls_in_progress = 40}; });
}

TEST(NcclCalls, ABucketTakesOneCallOfNcclAndAnotherWhereRanksExchangeTheirSums) {
  RunRanks(2, [](FakeRank& self) {
    auto group = self.MakeGroup();
    const Buffer whole = MakeBuffer(self, 2 * kCount);
    const Buffer part = MakeBuffer(self);
    double sum = 0;
    const CollectiveOptions squares{.sum_of_squares = &sum};
    const auto jobs_of = [&](const absl::StatusOr<Work>& work, int before) {
      EXPECT_TRUE(work.ok() && work->Wait(Deadline::After(absl::Seconds(30))).ok());
      return self.nccl.jobs() - before;
    };
    // The first average makes the operator that all of them use.
    for (int round = 0; round < 2; ++round) {
      int jobs = self.nccl.jobs();
      EXPECT_EQ(jobs_of(group->AllReduce(whole, ReduceOp::kAverage, squares), jobs), 1);
      jobs = self.nccl.jobs();
      EXPECT_EQ(jobs_of(group->ReduceScatter(whole, part, ReduceOp::kAverage), jobs), 1);
      jobs = self.nccl.jobs();
      EXPECT_EQ(jobs_of(group->ReduceScatter(whole, part, ReduceOp::kAverage, squares), jobs), 2);
      jobs = self.nccl.jobs();
      EXPECT_EQ(jobs_of(group->AllGather(part, whole), jobs), 1);
    }
    group.reset();
    self.ExpectClean();
  });
}

TEST(NcclCalls, AWatchdogAsksTheDeviceSeldomWhileNobodyWaits) {
  RunRanks(2, [](FakeRank& self) {
    auto group = self.MakeGroup();
    const Buffer buffer = MakeBuffer(self);
    const Deadline bound = Deadline::After(absl::Seconds(50));
    if (self.rank == 0) {
      const auto work = group->AllReduce(buffer, ReduceOp::kSum);
      ASSERT_TRUE(work.ok()) << work.status();
      const absl::Time start = absl::Now();
      const int64_t before = self.cuda.event_queries();
      absl::SleepFor(absl::Milliseconds(300));  // The time that is measured.
      const int64_t asked = self.cuda.event_queries() - before;
      const double milliseconds = absl::ToDoubleMilliseconds(absl::Now() - start);
      EXPECT_LT(static_cast<double>(asked), 2 * milliseconds + 20);
      ASSERT_TRUE(self.store->Set("measured", "", bound).ok());
      EXPECT_TRUE(work->Wait(bound).ok());
    } else {
      ASSERT_TRUE(self.store->Get("measured", bound).ok());
      EXPECT_TRUE(group->AllReduce(buffer, ReduceOp::kSum)->Wait(bound).ok());
    }
    group.reset();
    self.ExpectClean();
  });
}

TEST(NcclCalls, AStoreThatDoesNotAnswerHoldsUpNoCollective) {
  RunRanks(2, [](FakeRank& self) {
    StuckStore store(self.store);
    self.store = &store;
    auto group = self.MakeGroup();
    const Buffer buffer = MakeBuffer(self);
    auto* const values = static_cast<float*>(buffer.data);
    store.Stick(self.rank == 0);
    const Deadline bound = Deadline::After(absl::Seconds(30));
    int rounds_left = 5;  // The store's Check waits meanwhile.
    for (bool more = true; more;) {
      // Both then know whether rank 0 goes on.
      values[0] = self.rank == 0 && rounds_left > 0 ? 1 : 0;
      const auto work = group->AllReduce(buffer, ReduceOp::kMax);
      ASSERT_TRUE(work.ok()) << work.status();
      const absl::Status status = work->Wait(Deadline::After(absl::Seconds(10)));
      if (!status.ok() || bound.Expired()) {
        ADD_FAILURE() << "held up: " << status;
        break;
      }
      more = values[0] == 1;
      rounds_left -= store.waiting() > 0 ? 1 : 0;
    }
    store.Stick(false);
    group.reset();
    self.ExpectClean();
  });
}

}  // namespace
}  // namespace dtrain::comm::nccl_calls_test
