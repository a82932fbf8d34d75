// Steps as CUDA graphs, over the fakes: the bits of eager steps, new inputs and new random numbers
// in every launch, few operations queued by the host, and one line where something cannot be
// captured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "dtrain/engine.h"
#include "dtrain/ops.h"
#include "dtrain/token_loader.h"
#include "runtime/engine/device/step_graphs.h"
#include "tests/runtime/testing/graph_training.h"

namespace dtrain::engine_graph_test {
namespace {

using testing::ExpectEager;
using ::testing::HasSubstr;
using testing::kGraphSteps;
using testing::Net;
using testing::OutcomeOf;
using testing::Times;
using Outcome = testing::GraphOutcome;
using Way = testing::GraphWay;

TEST(EngineGraphTest, LaunchesGiveTheBitsOfEagerSteps) {
  for (const char* const precision : {"bf16.enabled=false", "bf16.enabled=true"}) {
    for (const char* const stage : {"zero_optimization.stage=0", "zero_optimization.stage=1"}) {
      for (const int64_t accumulation : {1, 2, 4}) {
        SCOPED_TRACE(absl::StrCat(precision, " ", stage, ", ", accumulation, " micro-batches"));
        const Way way{.settings = {precision, stage}, .accumulation = accumulation};
        const Outcome eager = OutcomeOf(way, false);
        const Outcome graphs = OutcomeOf(way, true);
        EXPECT_EQ(graphs.numbers, eager.numbers);
        EXPECT_EQ(eager.graph_launches, 0);
        // Two steps; then the first of a step and the others are warmed up and captured.
        EXPECT_EQ(graphs.closure_calls, 2 * accumulation + (accumulation == 1 ? 2 : 4));
        EXPECT_EQ(graphs.waits, 0);
        EXPECT_GE(graphs.waits_inside_graphs, 2 * (kGraphSteps - 4))
            << "reductions start in backward";
        EXPECT_EQ(Times(graphs.log, "run eagerly"), 0) << graphs.log;
        EXPECT_EQ(Times(graphs.log, "holds a micro-batch"), accumulation == 1 ? 1 : 2);
      }
    }
  }
}

// The factor of each step reaches updates that were captured before it was known.
TEST(EngineGraphTest, AFactorOfTheRateHoldsInLaunchesToo) {
  const Way way{.lr_factor = [](int64_t step) {
    return step % 2 == 0 ? 1.0 : 0.25 * static_cast<double>(step);
  }};
  const Outcome graphs = OutcomeOf(way, true);
  EXPECT_EQ(graphs.numbers, OutcomeOf(way, false).numbers);
  EXPECT_GT(graphs.graph_launches, 0);
  EXPECT_NE(graphs.numbers, OutcomeOf({}, true).numbers);
  const Way none{.lr_factor = [](int64_t) { return 0.0; }};
  EXPECT_EQ(OutcomeOf(none, true).numbers,
            OutcomeOf({.settings = {"optimizer.params.lr=0"}}, true).numbers);
}

// The weights stay as they are: whatever differs from step to step comes from the batch.
TEST(EngineGraphTest, ALaunchReadsTheNextBatch) {
  Way way{.settings = {"optimizer.params.lr=0"}};
  const Outcome graphs = OutcomeOf(way, true);
  ASSERT_EQ(Times(graphs.log, "run eagerly"), 0) << graphs.log;
  ASSERT_GE(graphs.graph_launches, kGraphSteps - 3);
  EXPECT_EQ(graphs.numbers, OutcomeOf(way, false).numbers);
  const at::Tensor same = testing::Rows(1, 0, 12);
  way.loss = [&](Net& net, const at::Tensor& /*x*/) { return net.Loss(same); };
  const Outcome unread = OutcomeOf(way, true);
  for (size_t step = 1; step < kGraphSteps; ++step) {
    const size_t at = 2 * step;
    EXPECT_NE(graphs.numbers[at], graphs.numbers[at - 2]) << "the loss of step " << step + 1;
    EXPECT_EQ(unread.numbers[at], unread.numbers[at - 2]) << "the weights changed";
  }
}

TEST(EngineGraphTest, WhatTheHostQueuesDoesNotGrowWithTheModel) {
  const auto deep = [](int layers) {
    return Way{.loss = [layers](Net& net, const at::Tensor& x) {
      at::Tensor h = at::tanh(x.matmul(net.a));
      for (int i = 1; i < layers; ++i) {
        h = at::tanh(h * 1.01 + 0.1);
      }
      return (h.matmul(net.b) * net.c).square().sum();
    }};
  };
  const Outcome shallow = OutcomeOf(deep(1), true);
  const Outcome graphs = OutcomeOf(deep(20), true);
  const Outcome eager = OutcomeOf(deep(20), false);
  EXPECT_EQ(graphs.numbers, eager.numbers);
  for (size_t step = 5; step < kGraphSteps; ++step) {
    EXPECT_EQ(graphs.operations[step], graphs.operations[4]) << step;
    EXPECT_EQ(graphs.operations[step], shallow.operations[step]) << step;
    EXPECT_GT(eager.operations[step], 2 * graphs.operations[step]) << step;
  }
}

TEST(EngineGraphTest, EachLaunchDrawsAnew) {
  const Way way{.loss = [](Net& net, const at::Tensor& x) {
    return net.Loss(at::dropout(x, 0.3, /*train=*/true));
  }};
  const Outcome graphs = OutcomeOf(way, true);
  EXPECT_GT(graphs.graph_launches, 0);
  EXPECT_EQ(graphs.numbers, OutcomeOf(way, false).numbers);
  EXPECT_NE(graphs.numbers, OutcomeOf({}, true).numbers);
}

TEST(EngineGraphTest, FusedOperationsKernelsArePartOfIt) {
  const Way way{
      .loss =
          [](Net& net, const at::Tensor& x) {
            const at::Tensor h =
                ops::Gelu(ops::Dropout(x.matmul(net.a), 0.2), ops::GeluForm::kTanh).matmul(net.b);
            return (ops::RmsNorm(h, net.c, 1e-5) * net.c).square().sum();
          },
      .fused = true};
  const Outcome graphs = OutcomeOf(way, true);
  EXPECT_EQ(graphs.numbers, OutcomeOf(way, false).numbers);
  EXPECT_EQ(Times(graphs.log, "run eagerly"), 0) << graphs.log;
  EXPECT_GT(graphs.graph_launches, 0);
}

TEST(EngineGraphTest, EvaluationsAndFailedStepsComeBetween) {
  Way way{.accumulation = 2, .evaluates = true};
  EXPECT_EQ(OutcomeOf(way, true).numbers, OutcomeOf(way, false).numbers);
  way.failing_call = 11;  // In the middle of a step whose first micro-batch was a graph.
  const Outcome graphs = OutcomeOf(way, true);
  EXPECT_EQ(graphs.numbers, OutcomeOf(way, false).numbers);
  EXPECT_EQ(Times(graphs.log, "run eagerly"), 0);
}

TEST(EngineGraphTest, EachOfAFewShapesHasItsGraph) {
  const Way way{.accumulation = 2, .rows = [](int64_t call) { return call % 3 == 0 ? 12 : 7; }};
  const Outcome graphs = OutcomeOf(way, true);
  EXPECT_EQ(graphs.numbers, OutcomeOf(way, false).numbers);
  EXPECT_EQ(Times(graphs.log, "run eagerly"), 0) << graphs.log;
  EXPECT_GT(Times(graphs.log, "holds a micro-batch"), 2) << graphs.log;
  EXPECT_GT(graphs.graph_launches, 2);
}

TEST(EngineGraphTest, ShapesWithoutEndRunEagerly) {
  const Way way{.accumulation = 4, .rows = [](int64_t call) { return 5 + call; }};
  ExpectEager(way, "micro-batches came in more than 8 kinds");
}

TEST(EngineGraphTest, AClosureThatWaitsForTheDeviceRunsEagerly) {
  ExpectEager({.loss =
                   [](Net& net, const at::Tensor& x) {
                     const at::Tensor loss = net.Loss(x);
                     return loss.item<double>() > 1e9 ? loss * 0.5 : loss;
                   }},
              "operation not permitted when stream is capturing");
  // After the first micro-batch of a step: what that one left must stay.
  ExpectEager({.accumulation = 3,
               .loss =
                   [](Net& net, const at::Tensor& x) {
                     if (net.a.grad().defined()) {
                       net.mean.sum().item<double>();
                     }
                     return net.Loss(x);
                   }},
              "operation not permitted when stream is capturing");
}

TEST(EngineGraphTest, ADeviceThatGivesNoGraphSaysWhy) {
  ExpectEager({.no_graphs = absl::NotFoundError("no libdtrain_torch_cuda.so")},
              "no libdtrain_torch_cuda.so");
}

TEST(EngineGraphTest, ACaptureFindsTheMemoryThatEagerMicroBatchesUsed) {
  for (const int64_t accumulation : {1, 3}) {
    const Way way{.accumulation = accumulation, .fits_one_pass = true};
    const Outcome graphs = OutcomeOf(way, true);
    EXPECT_EQ(graphs.numbers, OutcomeOf(way, false).numbers);
    EXPECT_EQ(Times(graphs.log, "run eagerly"), 0) << graphs.log;
    EXPECT_EQ(Times(graphs.log, "holds a micro-batch"), accumulation == 1 ? 1 : 2);
  }
}

TEST(EngineGraphTest, WhatARunsSettingsRuleOutIsSaidAtItsStart) {
  ExpectEager({.settings = {"fp16.enabled=true"}}, "the host gives each backward of fp16");
  ExpectEager({.settings = {"zero_optimization.stage=2"}}, "zero_optimization.stage 2");
  ExpectEager({.settings = {"zero_optimization.stage=3"}},
              "at zero_optimization.stage 3 the host gathers weights");
  ExpectEager({.settings = {"activation_checkpointing.mode=full"}}, "recomputed segment");
  ExpectEager({.settings = {"activation_checkpointing.cpu_checkpointing=true"}},
              "what recomputed segments keep goes to the host");
  const auto config = Config::Parse("{}", "none", {"train_batch_size=1"}, 1);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(WhyNoGraphs(*config, /*on_host=*/true), HasSubstr("on the CPU"));
  EXPECT_EQ(WhyNoGraphs(*config, /*on_host=*/false), "");
}

TEST(EngineGraphTest, ABatchSaysWhatItHoldsOrRunsEagerly) {
  Batch batch{.tokens = at::zeros({2, 3}, at::kLong),
              .targets = at::zeros({2, 3}, at::kLong),
              .targets_counted = 5};
  const auto known = GraphInputsOf(batch);
  ASSERT_TRUE(known.has_value());
  EXPECT_EQ(known->tensors.size(), 3);
  EXPECT_FALSE(known->tensors[2]->defined());
  EXPECT_EQ(known->numbers, std::vector<int64_t>{5});
  struct Opaque {
    at::Tensor x;
  } opaque;
  EXPECT_FALSE(GraphInputsOf(opaque).has_value());
}

}  // namespace
}  // namespace dtrain::engine_graph_test
