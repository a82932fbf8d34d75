#include "runtime/plan/memory_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace dtrain::plan {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

TEST(MemoryFitTest, RanksOfOneMachineAndOfOneCgroupShare) {
  EXPECT_DOUBLE_EQ(
      LeastAvailable({{{.machine = 1, .machine_available = 100, .cgroup_available = kNoLimit}}}),
      100);
  const RankMemory free{.machine = 1, .machine_available = 100, .cgroup_available = kNoLimit};
  EXPECT_DOUBLE_EQ(LeastAvailable({{free, free}}), 50);
  RankMemory far = free;
  far.machine = 2;
  EXPECT_DOUBLE_EQ(LeastAvailable({{free, far}}), 100);
  RankMemory jailed = free;
  jailed.cgroup = 7;
  jailed.cgroup_available = 30;
  EXPECT_DOUBLE_EQ(LeastAvailable({{free, jailed}}), 30);
  EXPECT_DOUBLE_EQ(LeastAvailable({{jailed, jailed}}), 15);
  RankMemory twin = jailed;  // The same path on another machine is another cgroup.
  twin.machine = 2;
  EXPECT_DOUBLE_EQ(LeastAvailable({{jailed, twin}}), 30);
}

MemoryRequest OfMillion(int stage, int64_t ranks) {
  MemoryRequest request;
  request.model.parameters = 1e6;
  request.zero_stage = stage;
  request.world_size = ranks;
  return request;
}

TEST(MemoryFitTest, WhatFitsPasses) {
  EXPECT_TRUE(CheckStatesFit(OfMillion(0, 1), 16e6).ok());
  EXPECT_TRUE(CheckStatesFit(OfMillion(3, 4), 4e6).ok());
}

TEST(MemoryFitTest, WhatDoesNotFitIsToldWhatWould) {
  const auto text = [](int stage, int64_t ranks, double available) {
    const absl::Status status = CheckStatesFit(OfMillion(stage, ranks), available);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(
      text(0, 4, 11e6),
      "weights, gradients and optimizer states of 1.0 million parameters take 0.016 GB on each "
      "of 4 ranks at zero_optimization.stage 0, but a rank has 0.011 GB: "
      "zero_optimization.stage 1 takes 0.01 GB");
  EXPECT_THAT(text(0, 4, 8e6), HasSubstr("zero_optimization.stage 2 takes"));
  EXPECT_THAT(text(2, 4, 5e6), HasSubstr("zero_optimization.stage 3 takes"));
  EXPECT_THAT(text(0, 4, 3.5e6), HasSubstr("stage 3 with offload_optimizer.device \"nvme\" takes"));
  EXPECT_THAT(text(0, 4, 1e6),
              HasSubstr("zero_optimization.stage 3 on 16 ranks fits; bf16.enabled"));
  EXPECT_THAT(text(3, 4, 0), HasSubstr("no number of ranks makes it fit"));
}

}  // namespace
}  // namespace dtrain::plan
