// The abort of NCCL groups: it finishes works and tells peers first, aborts siblings together, and
// calls nothing that may wait for a stopped peer or for a device that is stuck.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/time/clock.h"
#include "base/status.h"
#include "tests/comm/nccl/forked_ranks.h"

namespace dtrain::comm::nccl_abort_test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr size_t kCount = 5000;

Buffer MakeBuffer(FakeRank& self) {
  return {self.Allocate(kCount * sizeof(float)),
          kCount * sizeof(float),
          DType::kFloat32,
          {DeviceKind::kCuda, 0}};
}

std::function<FakeNcclFaults(int)> OnEveryRank(const FakeNcclFaults& faults) {
  return [faults](int) { return faults; };
}

TEST(NcclAbort, RegistrationsAndOperatorsAreLeftToNccl) {
  RunRanks(
      2,
      [](FakeRank& self) {
        auto group = self.MakeGroup();
        auto registration = group->RegisterDevice(self.Allocate(4096), 4096);
        ASSERT_TRUE(registration.ok()) << registration.status();
        const auto averaged = group->AllReduce(MakeBuffer(self), ReduceOp::kAverage);
        ASSERT_TRUE(averaged->Wait(Deadline::After(absl::Seconds(30))).ok());
        group->Abort("a test");
        group.reset();
        registration->reset();
        EXPECT_THAT(self.nccl.calls(), Contains("CommAbort"));
        EXPECT_THAT(self.nccl.calls(), Not(Contains("CommDeregister")));
        EXPECT_THAT(self.nccl.calls(), Not(Contains("RedOpDestroy")));
        self.ExpectClean();
      },
      OnEveryRank({.deregister_hangs = true}));
}

TEST(NcclAbort, ARegistrationThatGoesAfterTheAbortWaitsForNobody) {
  RunRanks(
      2,
      [](FakeRank& self) {
        auto group = self.MakeGroup();
        auto registration = group->RegisterDevice(self.Allocate(4096), 4096);
        ASSERT_TRUE(registration.ok()) << registration.status();
        group->Abort("a test");
        while (self.nccl.aborts() == 0) {
          absl::SleepFor(absl::Milliseconds(1));
        }
        registration->reset();
        group.reset();
        self.ExpectClean();
      },
      OnEveryRank({.deregister_hangs = true}));
}

TEST(NcclAbort, AnAbortThatDoesNotReturnComesAfterWorksAndPeersAndEndsTheProcess) {
  RunRanks(
      2,
      [](FakeRank& self) {
        self.options.abort_bound = absl::Seconds(3);
        auto group = self.MakeGroup();
        const Deadline bound = Deadline::After(absl::Seconds(30));
        if (self.rank == 0) {
          const auto work = group->Receive(MakeBuffer(self), 1);  // Nobody sends.
          group->Abort("a test");
          const absl::Status ended = work->Wait(Deadline::After(absl::Seconds(2)));
          ASSERT_EQ(ended.code(), absl::StatusCode::kAborted) << ended;
          ASSERT_TRUE(self.store->Set("the work has ended", "", bound).ok());
          group.reset();
          FAIL() << "the group was destroyed although its abort does not return";
        }
        const auto work = group->AllReduce(MakeBuffer(self), ReduceOp::kSum);
        EXPECT_THAT(std::string(work->Wait(bound).message()), HasSubstr("a peer gave up: rank 0"));
        EXPECT_TRUE(self.store->Get("the work has ended", bound).ok());
        group.reset();
        self.ExpectClean();
      },
      [](int rank) { return FakeNcclFaults{.abort_hangs = rank == 0}; },
      {.rank = 0, .exit_code = kExitTemporary});
}

// The collective of the split group cannot begin, because its stream follows the compute stream,
// which waits for one of the other group that hangs.
TEST(NcclAbort, ASiblingThatHoldsUpTheStreamsIsAbortedAtTheSameTime) {
  RunRanks(2, [](FakeRank& self) {
    CudaStream* compute = nullptr;
    ASSERT_EQ(self.cuda.StreamCreate(&compute, false), CudaResult::kSuccess);
    self.options.compute_stream = compute;
    auto reductions = self.MakeGroup();
    auto gathers = reductions->Split(0, self.rank, "gathers");
    ASSERT_TRUE(gathers.ok()) << gathers.status();
    const Deadline bound = Deadline::After(absl::Seconds(30));
    if (self.rank == 0) {
      const auto hangs = reductions->AllReduce(MakeBuffer(self), ReduceOp::kSum);
      ASSERT_TRUE(reductions->JoinStream(compute).ok());
      CollectiveOptions options;
      options.deadline = Deadline::After(absl::Seconds(2));
      const auto behind = (*gathers)->AllReduce(MakeBuffer(self), ReduceOp::kSum, options);
      const absl::Status late = behind->Wait(bound);
      EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
      EXPECT_THAT(std::string(late.message()), HasSubstr("has not come to it"));
      const absl::Status aborted = hangs->Wait(bound);
      EXPECT_EQ(aborted.code(), absl::StatusCode::kAborted) << aborted;
      EXPECT_THAT(std::string(aborted.message()), HasSubstr("has not come to it"));
      ASSERT_TRUE(self.store->Set("both have ended", "", bound).ok());
    }
    EXPECT_TRUE(self.store->Get("both have ended", bound).ok());
    gathers->reset();
    reductions.reset();
    EXPECT_EQ(self.cuda.StreamDestroy(compute), CudaResult::kSuccess);
    self.ExpectClean();
  });
}

TEST(NcclAbort, WhatASplitMakesAfterItsDeadlineIsAbortedWithItsParent) {
  RunRanks(
      2,
      [](FakeRank& self) {
        self.options.group.connect_timeout = absl::Seconds(5);
        auto group = self.MakeGroup();
        const auto split = group->Split(0, self.rank, "late");
        EXPECT_EQ(split.status().code(), absl::StatusCode::kDeadlineExceeded) << split.status();
        const auto later = group->AllReduce(MakeBuffer(self), ReduceOp::kSum);
        EXPECT_EQ(later.status().code(), absl::StatusCode::kAborted) << later.status();
        group.reset();
        EXPECT_EQ(self.nccl.aborts(), 2);
        self.ExpectClean();
      },
      OnEveryRank({.split_hangs = true}));
}

}  // namespace
}  // namespace dtrain::comm::nccl_abort_test
