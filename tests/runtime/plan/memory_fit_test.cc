#include "runtime/plan/memory/memory_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"

namespace dtrain::plan::memory_fit_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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

TEST(MemoryFitTest, FrozenParametersThatStageThreeSharesOutAreAReasonForIt) {
  MemoryRequest request = OfMillion(0, 4);
  request.model.frozen = {{.elements = 10e6}};
  const absl::Status refused = CheckStatesFit(request, 30e6);
  EXPECT_THAT(
      std::string(refused.message()),
      HasSubstr("of 1.0 million parameters, frozen parameters of 0.04 GB take 0.056 GB on each"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("zero_optimization.stage 3 takes"));
}

TEST(MemoryFitTest, Fp8CodesOfWeightsAreCountedAndNamed) {
  MemoryRequest request = OfMillion(0, 4);
  request.model.linear = 1e6;
  EXPECT_TRUE(CheckStatesFit(request, 16e6).ok());
  request.keeps_codes = true;
  EXPECT_TRUE(CheckStatesFit(request, 18e6).ok());
  EXPECT_THAT(std::string(CheckStatesFit(request, 17.9e6).message()),
              HasSubstr("of 1.0 million parameters, FP8 codes of weights take 0.018 GB on each"));
}

TEST(MemoryFitTest, TheStepJournalIsCountedAndNamed) {
  MemoryRequest request = OfMillion(0, 4);
  request.journal_bytes = 2;
  EXPECT_TRUE(CheckStatesFit(request, 17e6).ok());
  EXPECT_THAT(std::string(CheckStatesFit(request, 16.9e6).message()),
              HasSubstr("the step journal's gradients (checkpoint.journal) of 0.001 GB take"));
  request.states_on_host = true;  // On a GPU: page-locked memory of the host.
  EXPECT_TRUE(CheckOffloadFits(request, 1e6).ok());
  const std::string refused(CheckOffloadFits(request, 0.9e6).message());
  EXPECT_THAT(refused, HasSubstr("the step journal's gradients (checkpoint.journal) of 0.001 GB"));
  EXPECT_THAT(refused, HasSubstr("set checkpoint.journal to \"off\""));
}

TEST(MemoryFitTest, ReplicasAreCountedAndNamedWhereStatesAreInHostMemory) {
  MemoryRequest request = OfMillion(0, 4);
  request.replicas = true;
  EXPECT_TRUE(CheckStatesFit(request, 22e6).ok());
  EXPECT_THAT(
      std::string(CheckStatesFit(request, 21.9e6).message()),
      HasSubstr("of 1.0 million parameters, replicas (checkpoint.replicas) of 0.006 GB take "
                "0.022 GB on each"));
  request.states_on_host = true;  // On a GPU.
  EXPECT_THAT(std::string(CheckStatesFit(request, 1).message()), Not(HasSubstr("replicas")));
}

TEST(MemoryFitTest, FrozenParametersOfOtherTypesStayWholeAtEveryStage) {
  MemoryRequest request = OfMillion(3, 4);
  request.model.frozen_bytes = 2e6;
  EXPECT_EQ(PlanMemory(request).values, 1e6 + 2e6);
  EXPECT_TRUE(CheckStatesFit(request, 6e6).ok());
  EXPECT_THAT(
      std::string(CheckStatesFit(request, 5.9e6).message()),
      HasSubstr("of 1.0 million parameters, frozen parameters of 0.002 GB take 0.006 GB on each"));
  EXPECT_THAT(std::string(CheckStatesFit(request, 1.9e6).message()),
              HasSubstr("no number of ranks makes it fit"));
}

MemoryRequest OfTokens(int64_t micro_batch) {
  MemoryRequest request = OfMillion(0, 2);
  request.model.hidden = request.model.query_width = request.model.kv_width = 100;
  request.model.intermediate = 400;
  request.model.layers = 10;
  request.micro_batch = micro_batch;
  request.sequence_length = 1000;
  return request;
}

TEST(MemoryFitTest, AMicroBatchThatDoesNotFitIsToldWhichWould) {
  const auto text = [](int64_t micro_batch, double available) {
    const absl::Status status = CheckStatesFit(OfTokens(micro_batch), available);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  // 16 MB of states; 10 layers of 2,000 values of 4 bytes and two ends: 80.8 MB a sample, less a
  // tenth, because it is an estimate.
  EXPECT_TRUE(CheckStatesFit(OfTokens(1), 16e6 + 0.9 * 81e6).ok());
  EXPECT_EQ(text(8, 400e6),
            "weights, gradients and optimizer states of 1.0 million parameters and activations of "
            "a micro-batch of 8 x 1000 tokens take 0.598 GB on each of 2 ranks at "
            "zero_optimization.stage 0, but a rank has 0.4 GB: train_micro_batch_size_per_gpu 4 "
            "takes 0.307 GB");
  EXPECT_THAT(text(8, 60e6), HasSubstr(": train_micro_batch_size_per_gpu 1 with "
                                       "activation_checkpointing.mode \"full\" takes"));
  EXPECT_THAT(text(8, 24e6), HasSubstr(": zero_optimization.stage 1 and "
                                       "train_micro_batch_size_per_gpu 1 with activation_"));
}

TEST(MemoryFitTest, AGpuIsToldOfOffloadAndItsStatesMustFitTheHost) {
  MemoryRequest request = OfMillion(1, 1);
  request.states_on_host = true;
  EXPECT_THAT(std::string(CheckStatesFit(request, 9e6).message()),
              HasSubstr("stage 1 with offload_optimizer.device \"cpu\" takes"));
  EXPECT_TRUE(CheckOffloadFits(request, 0).ok()) << "nothing is offloaded";
  request.offload_buffers = 4;
  EXPECT_TRUE(CheckStatesFit(request, 9e6).ok());
  EXPECT_TRUE(CheckOffloadFits(request, 13e6).ok());
  const absl::Status host = CheckOffloadFits(request, 10e6);
  EXPECT_EQ(
      std::string(host.message()),
      "the offloaded states of 1.0 million parameters take 0.012 GB of host memory on "
      "each of 1 rank at zero_optimization.stage 1, but a rank has 0.01 GB: "
      "set offload_optimizer.device to \"nvme\" with ratio 1 to keep optimizer states in a file");
  request.offload_buffers = 0;
  request.zero_stage = 3;
  request.values_far = true;
  EXPECT_TRUE(CheckOffloadFits(request, 4e6).ok()) << "weights alone";
  EXPECT_THAT(std::string(CheckOffloadFits(request, 3e6).message()), HasSubstr("use more ranks"));
  request.model.frozen = {{.elements = 10e6}};
  EXPECT_THAT(
      std::string(CheckOffloadFits(request, 4e6).message()),
      HasSubstr(
          "the offloaded states of 1.0 million parameters and of frozen parameters of 0.04 GB "
          "take 0.044 GB of host memory"));
}

TEST(MemoryFitTest, AGpuOffloadsFromTheStageThatItHasUpwards) {
  MemoryRequest request = OfMillion(0, 1);
  request.states_on_host = true;
  for (const auto& [stage, first] : {std::pair(0, "1"), std::pair(2, "2"), std::pair(3, "3")}) {
    request.zero_stage = stage;
    EXPECT_THAT(std::string(CheckStatesFit(request, 9e6).message()),
                HasSubstr(absl::StrCat("has 0.009 GB: zero_optimization.stage ", first,
                                       " with offload_optimizer.device \"cpu\" takes")))
        << "stage " << stage;
  }
  request.zero_stage = 1;
  request.offload_buffers = 4;  // It offloads already.
  EXPECT_THAT(std::string(CheckStatesFit(request, 1e6).message()),
              ::testing::Not(HasSubstr("with offload_optimizer.device")));
}

// 12 MiB of states of which a GPU's weights and gradients, 3 MiB each, fill two granules each.
TEST(MemoryFitTest, AGpuNeedsRoomForTheGranulesOfItsBuffers) {
  constexpr double kMiB = 1 << 20;
  MemoryRequest request = OfMillion(0, 1);
  request.model.parameters = 0.75 * kMiB;
  EXPECT_TRUE(CheckStatesFit(request, 12 * kMiB).ok()) << "of a CPU";
  request.states_on_host = true;
  EXPECT_FALSE(CheckStatesFit(request, 13 * kMiB).ok());
  EXPECT_TRUE(CheckStatesFit(request, 14 * kMiB).ok());
}

TEST(MemoryFitTest, OnlyKnownActivationsAreNamed) {
  MemoryRequest request = OfMillion(0, 2);
  request.micro_batch = 8;
  request.sequence_length = 1000;
  EXPECT_THAT(std::string(CheckStatesFit(request, 1e6).message()),
              ::testing::Not(HasSubstr("activations of a micro-batch")));
  EXPECT_THAT(std::string(CheckStatesFit(OfTokens(0), 1e6).message()),
              ::testing::Not(HasSubstr("activations of a micro-batch")));
}

TEST(MemoryFitTest, StatesThatDoNotFitTheHostAreToldWhatIsLeftToDo) {
  MemoryRequest request = OfMillion(1, 1);
  request.states_on_host = true;
  request.offload_buffers = 4;
  const auto remedy = [](const MemoryRequest& r) {
    const std::string text(CheckOffloadFits(r, 1e5).message());
    return text.substr(text.find("a rank has 0.0001 GB: ") + 22);
  };
  EXPECT_THAT(remedy(request), HasSubstr("set offload_optimizer.device to \"nvme\" with ratio 1"));
  request.offload_to_file = true;
  request.offload_ratio = 0.5;
  EXPECT_THAT(remedy(request), HasSubstr("set offload_optimizer.device to \"nvme\" with ratio 1"));
  request.offload_ratio = 1;
  EXPECT_EQ(remedy(request), "use more ranks or a smaller offload_optimizer.buffer_count");
  request.offload_buffers = 0;
  request.zero_stage = 3;
  request.values_far = true;
  EXPECT_EQ(remedy(request), "use more ranks");
  request = OfTokens(8);
  request.states_on_host = true;
  request.recompute.mode = ActivationCheckpointingConfig::Mode::kFull;
  request.recompute.tier = ActivationCheckpointingConfig::Tier::kMemory;
  EXPECT_EQ(remedy(request),
            "most of it is activations, so set a smaller train_micro_batch_size_per_gpu");
}

TEST(MemoryFitTest, OnlyAnFp32ModelIsToldOfBf16) {
  MemoryRequest request = OfMillion(3, 4);
  request.model.frozen_bytes = 2e6;
  EXPECT_THAT(std::string(CheckStatesFit(request, 1e6).message()), HasSubstr("; bf16.enabled"));
  request.precision = PrecisionConfig::Kind::kBFloat16;
  EXPECT_THAT(std::string(CheckStatesFit(request, 1e6).message()),
              ::testing::Not(HasSubstr("bf16.enabled")));
}

TEST(MemoryFitTest, WhatIsMadeWholeMustFitTheHostBeforeItIsSharedOut) {
  MemoryRequest request = OfMillion(2, 1000);
  request.precision = PrecisionConfig::Kind::kBFloat16;
  EXPECT_TRUE(CheckStatesFit(request, 3e6).ok());
  const absl::Status made = CheckCanBeMade(request, 3e6);
  EXPECT_EQ(
      std::string(made.message()),
      "1.0 million parameters take 0.004 GB on every rank while the model is created in fp32 at "
      "zero_optimization.stage 2, but a rank has 0.003 GB of host memory; set "
      "zero_optimization.stage 3, which creates the parameters in files of the run directory");
  EXPECT_TRUE(CheckCanBeMade(request, 4e6).ok());
  request.zero_stage = 3;
  EXPECT_TRUE(CheckCanBeMade(request, 3e6).ok());
}

}  // namespace
}  // namespace dtrain::plan::memory_fit_test
