// The variables of NCCL that dtrain sets, and what happens without them. dtrain keeps the value of
// a variable that is already set.
#include "comm/nccl/nccl_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include "tests/comm/nccl/forked_ranks.h"

namespace dtrain::comm::nccl_environment_test {
namespace {

using testing::HasSubstr;

constexpr char kOrder[] = "NCCL_LAUNCH_ORDER_IMPLICIT";

TEST(NcclEnvironment, CommunicatorsAreLaunchedInTheOrderOfTheProgramWhereNobodyChose) {
  const auto missing = MissingNcclVariables({{"NCCL_DEBUG", "INFO"}});
  ASSERT_EQ(missing.size(), 1U);
  EXPECT_EQ(missing[0].name, kOrder);
  EXPECT_EQ(missing[0].value, "1");
  EXPECT_THAT(missing[0].reason, HasSubstr("communicators"));
  EXPECT_TRUE(MissingNcclVariables({{kOrder, "0"}}).empty());
}

TEST(NcclEnvironment, SetsTheProcesssVariablesAndKeepsWhatTheUserSet) {
  ASSERT_EQ(unsetenv(kOrder), 0);
  SetNcclVariables();
  EXPECT_EQ(ReadEnvironment().at(kOrder), "1");
  ASSERT_EQ(setenv(kOrder, "0", 1), 0);
  SetNcclVariables();
  EXPECT_EQ(ReadEnvironment().at(kOrder), "0");
  ASSERT_EQ(unsetenv(kOrder), 0);
}

Buffer Ones(FakeRank& self) {
  constexpr size_t kCount = 5000;
  auto* const data = static_cast<float*>(self.Allocate(kCount * sizeof(float)));
  std::fill(data, data + kCount, 1.0F);
  return {data, kCount * sizeof(float), DType::kFloat32, {DeviceKind::kCuda, 0}};
}

// Reduces once over each of two communicators, in one order of calls on both ranks. On rank 0 the
// first kernel is held back until its GPU has come to the second one, on rank 1 the second until
// it has come to the first. Gives how both reductions end.
void ReduceOverTwoCommunicators(FakeRank& self, std::array<absl::Status, 2>& ends) {
  CudaStream* held_back = nullptr;
  CudaEvent* released = nullptr;
  ASSERT_EQ(self.cuda.StreamCreate(&held_back, false), CudaResult::kSuccess);
  ASSERT_EQ(self.cuda.EventCreate(&released, false), CudaResult::kSuccess);
  auto first = self.MakeGroup();
  auto second = first->Split(0, self.rank, "second");
  ASSERT_TRUE(second.ok()) << second.status();
  self.cuda.Enqueue(held_back, [&self] {
    while (self.nccl.kernels_arrived(/*device=*/0) == 0 && !self.cuda.stopping()) {
      usleep(200);
    }
  });
  ASSERT_EQ(self.cuda.EventRecord(released, held_back), CudaResult::kSuccess);
  std::array<CollectiveOptions, 2> options;
  options[static_cast<size_t>(self.rank)].after = released;
  const std::array<Buffer, 2> buffers = {Ones(self), Ones(self)};
  const auto one = first->AllReduce(buffers[0], ReduceOp::kSum, options[0]);
  const auto two = (*second)->AllReduce(buffers[1], ReduceOp::kSum, options[1]);
  ASSERT_TRUE(one.ok() && two.ok()) << one.status() << " " << two.status();
  ends = {one->Wait(), two->Wait()};
  for (size_t i = 0; i < ends.size() && ends[i].ok(); ++i) {
    EXPECT_EQ(static_cast<const float*>(buffers[i].data)[0], 2.0F) << i;
  }
  second->reset();
  first.reset();
  EXPECT_EQ(self.cuda.EventDestroy(released), CudaResult::kSuccess);
  EXPECT_EQ(self.cuda.StreamDestroy(held_back), CudaResult::kSuccess);
  self.ExpectClean();
}

// A GPU that is too full for the kernels of two communicators at once.
FakeNcclFaults OneKernelAtOnce(int /*rank*/) { return {.kernels_at_once = 1}; }

TEST(NcclEnvironment, WhatDtrainSetsKeepsTwoCommunicatorsFromWaitingForEachOther) {
  RunRanks(
      2,
      [](FakeRank& self) {
        ASSERT_EQ(unsetenv(kOrder), 0);
        SetNcclVariables();
        std::array<absl::Status, 2> ends;
        ReduceOverTwoCommunicators(self, ends);
        EXPECT_TRUE(ends[0].ok()) << ends[0];
        EXPECT_TRUE(ends[1].ok()) << ends[1];
      },
      OneKernelAtOnce);
}

// The test above proves something only if the fake's kernels do wait for each other.
TEST(NcclEnvironment, TwoCommunicatorsWithoutAnOrderWaitForEachOther) {
  RunRanks(
      2,
      [](FakeRank& self) {
        ASSERT_EQ(unsetenv(kOrder), 0);
        self.options.group.timeout = absl::Seconds(3);
        std::array<absl::Status, 2> ends;
        ReduceOverTwoCommunicators(self, ends);
        EXPECT_FALSE(ends[0].ok());
        EXPECT_FALSE(ends[1].ok());
      },
      OneKernelAtOnce);
}

}  // namespace
}  // namespace dtrain::comm::nccl_environment_test
