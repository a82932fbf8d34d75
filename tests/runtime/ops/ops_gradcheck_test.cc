// The gradients of fused operations against finite differences of the kernels themselves. Those
// compute in fp32, so a difference is taken along a direction in which every element moves: the
// rounding of one value is then nothing beside the change of all.
#include <algorithm>
#include <cmath>
#include <utility>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/core/grad_mode.h"
#include "dtrain/ops.h"
#include "dtrain/recompute.h"
#include "tests/runtime/testing/operation_count.h"
#include "tests/runtime/testing/ops_testing.h"

namespace dtrain::ops::ops_gradcheck_test {
namespace {

using dtrain::testing::OperationCount;
using testing::Operation;
using testing::Tensors;

// Odd, so that vectors have tails, and wide enough for whole ones.
constexpr int64_t kRows = 7;
constexpr int64_t kWidth = 37;
constexpr double kEps = 1e-5;

Tensors Results(const at::Tensor& y) { return {y}; }
Tensors Results(const Tensors& all) { return all; }
Tensors Results(const NormOfSum& out) { return {out.y, out.sum}; }
Tensors Results(const Qkv& out) { return {out.q, out.k, out.v}; }
Tensors Results(const Loss& loss) { return {loss.sum}; }

using Shapes = std::vector<std::vector<int64_t>>;

struct Case {
  std::string name;
  std::string range;  // The profiler range of the kernels' path; backward may add "_backward".
  Shapes shapes;      // The shapes of the leaves.
  Operation run;
  int announced;  // How often the range is met, forward and backward.
};

struct Cases {
  template <class Function>
  void Add(std::string name, std::string range, Shapes shapes, Function run, int announced = 2) {
    all.push_back({std::move(name), "dtrain::" + std::move(range), std::move(shapes),
                   [run = std::move(run)](const Tensors& in) { return Results(run(in)); },
                   announced});
  }
  std::vector<Case> all;
};

const std::vector<int64_t> kX = {kRows, kWidth};
const std::vector<int64_t> kW = {kWidth};

void AddNorms(Cases& cases) {
  cases.Add("RmsNorm", "rms_norm", {kX, kW},
            [](const Tensors& in) { return RmsNorm(in[0], in[1], kEps); });
  cases.Add("AddRmsNorm", "rms_norm", {kX, kX, kW},
            [](const Tensors& in) { return AddRmsNorm(in[0], in[1], in[2], kEps); });
  cases.Add("LayerNorm", "layer_norm", {kX, kW, kW},
            [](const Tensors& in) { return LayerNorm(in[0], in[1], in[2], kEps); });
  cases.Add("LayerNorm, no bias", "layer_norm", {kX, kW},
            [](const Tensors& in) { return LayerNorm(in[0], in[1], {}, kEps); });
  cases.Add("AddLayerNorm", "layer_norm", {kX, kX, kW, kW},
            [](const Tensors& in) { return AddLayerNorm(in[0], in[1], in[2], in[3], kEps); });
  cases.Add("AddLayerNorm, no bias", "layer_norm", {kX, kX, kW},
            [](const Tensors& in) { return AddLayerNorm(in[0], in[1], in[2], {}, kEps); });
}

void AddActivations(Cases& cases) {
  const std::vector<int64_t> halves = {kRows, 2 * kWidth};
  cases.Add("SwiGlu", "gated_unit", {kX, kX},
            [](const Tensors& in) { return SwiGlu(in[0], in[1]); });
  cases.Add("SwiGlu of one buffer", "gated_unit", {halves},
            [](const Tensors& in) { return SwiGlu(in[0]); });
  for (const GeluForm form : {GeluForm::kExact, GeluForm::kTanh}) {
    const std::string name = form == GeluForm::kTanh ? " (tanh)" : " (exact)";
    cases.Add("Gelu" + name, "activation", {kX},
              [=](const Tensors& in) { return Gelu(in[0], form); });
    cases.Add("GeGlu" + name, "gated_unit", {kX, kX},
              [=](const Tensors& in) { return GeGlu(in[0], in[1], form); });
    cases.Add("GeGlu of one buffer" + name, "gated_unit", {halves},
              [=](const Tensors& in) { return GeGlu(in[0], form); });
  }
}

void AddRotations(Cases& cases) {
  constexpr int64_t kHeadDim = 43;  // 19 pairs, and five elements that pass through.
  const RopeTable table = MakeRopeTable(11, 38, 100);
  const at::Tensor positions = (at::arange(10, at::kLong) * 7 % 11).view({2, 5});
  for (const RopeForm form : {RopeForm::kHalfSplit, RopeForm::kInterleaved}) {
    for (const bool given : {false, true}) {
      const RopeOptions options{form, given ? positions : at::Tensor()};
      const std::string name =
          std::string(form == RopeForm::kInterleaved ? " (interleaved)" : " (half-split)") +
          (given ? " at positions" : "");
      cases.Add("Rope" + name, "rope", {{2, 5, 3, kHeadDim}},
                [=](const Tensors& in) { return Rope(in[0], table, options); });
      cases.Add("RopeQkv" + name, "rope_qkv", {{2, 5, 8 * kHeadDim}},
                [=](const Tensors& in) { return RopeQkv(in[0], 4, 2, table, options); });
    }
  }
}

void AddLosses(Cases& cases) {
  at::Tensor targets = at::arange(kRows, at::kLong) * 6;  // To the last word.
  targets[2] = -100;
  for (const double z_loss : {0.0, 0.01}) {
    for (const double smoothing : {0.0, 0.1}) {
      const CrossEntropyOptions options{.z_loss = z_loss, .label_smoothing = smoothing};
      const std::string name =
          std::string(z_loss > 0 ? " + z-loss" : "") + (smoothing > 0 ? " + smoothing" : "");
      cases.Add("CrossEntropy" + name, "cross_entropy", {kX},
                [=](const Tensors& in) { return CrossEntropy(in[0], targets, options); });
      for (const int64_t chunk : {3, 0}) {  // 3, 3 and 1 tokens; all at once.
        cases.Add("LinearCrossEntropy" + name + (chunk > 0 ? " in chunks" : ""),
                  "linear_cross_entropy", {{kRows, 9}, {kWidth, 9}}, [=](const Tensors& in) {
                    return LinearCrossEntropy(in[0], in[1], targets, options, chunk);
                  });
      }
    }
  }
}

void AddLinears(Cases& cases) {
  cases.Add("TransposedLinear", "transposed_linear", {kX, {kWidth, 5}, {5}},
            [](const Tensors& in) { return TransposedLinear(in[0], in[1], in[2]); });
  cases.Add("TransposedLinear, no bias", "transposed_linear", {kX, {kWidth, 5}},
            [](const Tensors& in) { return TransposedLinear(in[0], in[1]); });
  cases.Add("GeluMlp", "gelu_mlp", {kX, {kWidth, 9}, {9, 5}, {9}, {5}}, [](const Tensors& in) {
    return GeluMlp(in[0], in[1], in[2], {in[3], in[4]});
  });
  cases.Add("GeluMlp, no biases", "gelu_mlp", {kX, {kWidth, 9}, {9, 5}},
            [](const Tensors& in) { return GeluMlp(in[0], in[1], in[2]); });
  cases.Add("MergedLinear", "merged_linear", {kX, {5, kWidth}, {3, kWidth}, {5}, {3}},
            [](const Tensors& in) {
              return MergedLinear(in[0], {in[1], in[2]}, {in[3], in[4]});
            });
  cases.Add("MergedLinear of neighbours", "merged_linear", {kX, {8, kWidth}},
            [](const Tensors& in) {
              return MergedLinear(in[0], {in[1].narrow(0, 0, 5), in[1].narrow(0, 5, 3)});
            });
}

void AddOthers(Cases& cases) {
  const at::Tensor ids = at::arange(kRows, at::kLong) * 3 % 5;  // Some twice.
  cases.Add(
      "Embedding", "embedding", {{5, kWidth}},
      [=](const Tensors& in) { return Embedding(ids, in[0]); }, /*announced=*/1);  // Backward.
  cases.Add("Dropout", "dropout", {kX}, [](const Tensors& in) { return Dropout(in[0], 0.3); });
  const Segment segment = [](const Tensors& in) -> Tensors {
    return {Gelu(Dropout(RmsNorm(in[0], in[1], kEps), 0.3), GeluForm::kTanh)};
  };
  cases.Add(
      "a recomputed segment", "rms_norm", {kX, kW},
      [=](const Tensors& in) { return RecomputeSegment(segment, in); }, /*announced=*/3);
}

std::vector<Case> All() {
  Cases cases;
  AddNorms(cases);
  AddActivations(cases);
  AddRotations(cases);
  AddLosses(cases);
  AddLinears(cases);
  AddOthers(cases);
  return std::move(cases.all);
}

// Draws from a generator of this test's own: the default one begins anew with each evaluation.
at::Tensor Random(at::IntArrayRef sizes) {
  static at::Generator generator = at::detail::createCPUGenerator(5);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble));
}
Tensors Leaves(const Case& c) {
  Tensors leaves;
  for (const auto& shape : c.shapes) {
    leaves.push_back(Random(shape).to(at::kFloat).requires_grad_());
  }
  return leaves;
}

Tensors Evaluated(const Case& c, const Tensors& in) {
  at::manual_seed(11);  // Dropout drops the same.
  return c.run(in);
}

// The results with their weights, summed in fp64: a number that moves smoothly with the inputs.
double Weighted(const Tensors& results, const Tensors& seeds) {
  double sum = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    sum += (results[i].to(at::kDouble) * seeds[i].to(at::kDouble)).sum().item<double>();
  }
  return sum;
}

// The difference quotient of Weighted along `directions`, of fourth order, so that a step may be
// large enough for fp32. Its errors are 2^-24 / kStep = 3e-6 by rounding of values near 1, and
// kStep^4 = 2e-7 times a fifth derivative by the series.
double Difference(const Case& c, const Tensors& leaves, const Tensors& directions,
                  const Tensors& seeds) {
  constexpr double kStep = 0.02;
  const at::NoGradGuard no_grad;
  const auto after = [&](double steps) {
    Tensors moved;
    for (size_t i = 0; i < leaves.size(); ++i) {
      moved.push_back((leaves[i].to(at::kDouble) + directions[i] * (steps * kStep)).to(at::kFloat));
    }
    return Weighted(Evaluated(c, moved), seeds);
  };
  return (8 * (after(1) - after(-1)) - (after(2) - after(-2))) / (12 * kStep);
}

// |gradient . direction - difference| beside the size that such a product has by chance, the
// largest in several random directions. `which`: of the inputs, the one that moves; their number:
// all, which finds a gradient that went to another input. The gradient is taken times `scale`.
double LargestError(const Case& c, size_t which, double scale) {
  constexpr int kDirections = 4;
  double largest = 0;
  for (int draw = 0; draw < kDirections; ++draw) {
    const Tensors leaves = Leaves(c);
    const Tensors results = Evaluated(c, leaves);
    Tensors seeds;
    for (const at::Tensor& result : results) {
      seeds.push_back(Random(result.sizes()).to(at::kFloat));
    }
    const Tensors gradients = torch::autograd::grad(results, leaves, seeds);
    Tensors directions;
    double product = 0;
    double chance = 0;
    for (size_t i = 0; i < leaves.size(); ++i) {
      const double moves = which == leaves.size() || which == i ? 1 : 0;
      directions.push_back(Random(leaves[i].sizes()) * moves);
      const at::Tensor terms = gradients[i].to(at::kDouble) * scale * directions[i];
      product += terms.sum().item<double>();
      chance += terms.square().sum().item<double>();
    }
    const double error = std::abs(product - Difference(c, leaves, directions, seeds));
    EXPECT_GT(chance, 0) << "no gradient";
    largest = std::max(largest, error / std::sqrt(chance));
  }
  return largest;
}

// Far above what rounding leaves, far below what any one element of a gradient adds.
constexpr double kTolerance = 2e-3;

TEST(OpsGradcheckTest, GradientsAreTheFiniteDifferencesOfTheFp32Kernels) {
  for (const Case& c : All()) {
    for (size_t which = 0; which <= c.shapes.size(); ++which) {
      EXPECT_LT(LargestError(c, which, 1), kTolerance) << c.name << ", input " << which;
    }
  }
}

TEST(OpsGradcheckTest, AGradientThatIsTwoPercentTooLongIsFound) {
  for (const Case& c : All()) {
    for (size_t which = 0; which <= c.shapes.size(); ++which) {
      EXPECT_GT(LargestError(c, which, 1.02), kTolerance) << c.name << ", input " << which;
    }
  }
}

TEST(OpsGradcheckTest, WhatIsCheckedAreTheKernelsBothWays) {
  // ATen's operations that replace the kernels where these do not run. The loss has one range for
  // both paths.
  const std::set<std::string> fallbacks = {"aten::rms_norm", "aten::layer_norm", "aten::gelu",
                                           "aten::silu",     "aten::dropout",    "aten::logsumexp"};
  for (const Case& c : All()) {
    SCOPED_TRACE(c.name);
    const Tensors leaves = Leaves(c);
    const auto count = [&](const std::set<std::string>& names) {
      const OperationCount counted(names);
      const Tensors results = Evaluated(c, leaves);
      Tensors seeds;
      for (const at::Tensor& result : results) {
        seeds.push_back(at::ones_like(result));
      }
      torch::autograd::grad(results, leaves, seeds);
      return counted.Count();
    };
    EXPECT_EQ(count({c.range, c.range + "_backward"}), c.announced);
    EXPECT_EQ(count(fallbacks), 0);
  }
}

}  // namespace
}  // namespace dtrain::ops::ops_gradcheck_test
