// FP8 codes of weights where micro-batches are CUDA graphs, over the fakes: made once a step, of
// the weights that a step finds, with the bits of eager steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "dtrain/engine.h"
#include "dtrain/fp8.h"
#include "dtrain/ops.h"
#include "runtime/engine/device/step_graphs.h"
#include "runtime/ops/fp8_weight_codes.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/graph_training.h"

namespace dtrain::engine_graph_fp8_test {
namespace {

using testing::ExpectEager;
using testing::kGraphSteps;
using testing::Net;
using testing::OutcomeOf;
using testing::Times;
using Outcome = testing::GraphOutcome;
using Way = testing::GraphWay;

constexpr int64_t kMergedLayers = 2;  // Fp8Layers computes them in one product.

// Two layers of one input, the others, and the frozen one, which may have any number of rows.
Way Fp8Layers(Fp8Options::Scaling scaling) {
  return {.settings = {"bf16.enabled=true"},
          .accumulation = 4,
          .rows = [](int64_t /*call*/) { return 16; },
          .loss =
              [options = Fp8Options{.enabled = true, .scaling = scaling}](Net& net,
                                                                          const at::Tensor& x) {
                at::Tensor h = at::tanh(x.to(net.a.scalar_type()).matmul(net.a));
                const at::Tensor two =
                    ops::MergedFp8Linear(h, {net.layers[0], net.layers[1]}, {}, options);
                h = h + two.view({-1, 2, 64}).sum(1);
                for (size_t i = kMergedLayers; i < net.layers.size(); ++i) {
                  h = h + ops::Fp8Linear(h, net.layers[i], {}, options);
                }
                h = h + ops::Fp8Linear(h, net.frozen, {}, options).mean(1, /*keepdim=*/true);
                return (h.matmul(net.b) * net.c).square().sum(at::kFloat);
              },
          .fused = true,
          .layers = true};
}

class EngineGraphFp8Test : public ::testing::TestWithParam<Fp8Options::Scaling> {};

TEST_P(EngineGraphFp8Test, MicroBatchesOfAStepShareTheCodesOfWeights) {
  const Way way = Fp8Layers(GetParam());
  const Outcome graphs = OutcomeOf(way, true);
  const Outcome eager = OutcomeOf(way, false);
  EXPECT_EQ(graphs.numbers, eager.numbers);
  EXPECT_EQ(Times(graphs.log, "run eagerly"), 0) << graphs.log;
  EXPECT_GE(graphs.graph_launches, way.accumulation * (kGraphSteps - 4));
  Outcome each_its_own;
  {
    const ops::WithoutKeptCodes fresh;
    each_its_own = OutcomeOf(way, true);
  }
  EXPECT_EQ(each_its_own.numbers, eager.numbers);
  EXPECT_EQ(each_its_own.graph_launches, graphs.graph_launches);
  // A transposed copy's rows are no weight's.
  const int kernels_each = GetParam() == Fp8Options::Scaling::kRowwise ? 1 : 2;
  const int layers = static_cast<int>(Net::kSegments - kMergedLayers);
  for (size_t step = 0; step < kGraphSteps; ++step) {
    SCOPED_TRACE(absl::StrCat("step ", step + 1));
    EXPECT_EQ(eager.code_kernels[step], layers * kernels_each);
    EXPECT_EQ(each_its_own.code_kernels[step], way.accumulation * layers * kernels_each);
    EXPECT_EQ(graphs.code_kernels[step],
              step < StepGraphs::kWarmUpSteps ? layers * kernels_each : layers)
        << "both forms in one pass, once a step";
  }
}

TEST_P(EngineGraphFp8Test, LaunchesSeeWhateverChangedAWeight) {
  const auto write = [](Net& net, float value) {  // Counted by nobody.
    net.frozen.mutable_data_ptr<at::BFloat16>()[0] = at::BFloat16(value);
  };
  Way way = Fp8Layers(GetParam());
  way.rows = [](int64_t call) { return call % 3 == 0 ? 32 : 16; };
  way.evaluates = true;
  const std::vector<double> unwritten = OutcomeOf(way, true).numbers;
  way.before_batch = [&](Net& net, int64_t call) {
    if (call == 14) {
      const at::NoGradGuard no_grad;
      net.frozen.mul_(1.5);   // Within a step.
    } else if (call == 18) {  // Another engine would write so.
      ops::KeptWeightCodes::NoteWrites();
      write(net, 3);
    }
  };
  way.after_step = [&](Net& net, Engine& engine) {
    if (engine.step() == 5) {
      write(net, -4);
    } else if (engine.step() == 6) {
      EXPECT_TRUE(engine.WithParameters([&] { write(net, 5); }).ok());
    } else if (engine.step() == 7) {
      engine.state();
      write(net, -6);  // A restored checkpoint would write so.
    }
  };
  way.infinite_call = 21;  // Its step is skipped.
  const Outcome graphs = OutcomeOf(way, true);
  EXPECT_EQ(graphs.numbers, OutcomeOf(way, false).numbers);
  EXPECT_NE(graphs.numbers, unwritten);
  EXPECT_EQ(Times(graphs.log, "run eagerly"), 0) << graphs.log;
  EXPECT_EQ(Times(graphs.log, "skipped: the gradient"), 1) << graphs.log;
  EXPECT_GT(graphs.graph_launches, 0);
}

INSTANTIATE_TEST_SUITE_P(Scalings, EngineGraphFp8Test,
                         ::testing::Values(Fp8Options::Scaling::kTensorwise,
                                           Fp8Options::Scaling::kRowwise),
                         [](const auto& scaling) {
                           return scaling.param == Fp8Options::Scaling::kRowwise ? "Rowwise"
                                                                                 : "Tensorwise";
                         });

TEST(EngineGraphFp8WeightsTest, AnFp8WeightOfAnotherShapeRunsEagerly) {
  Way way = Fp8Layers(Fp8Options::Scaling::kTensorwise);
  way.before_batch = [](Net& net, int64_t call) {
    if (call == 22) {
      net.frozen.set_data(at::full({128, 64}, 0.01, net.frozen.options()));
    }
  };
  ExpectEager(way, "of another shape or type than when captured");
}

}  // namespace
}  // namespace dtrain::engine_graph_fp8_test
