// The gradients of fused operations against finite differences of the kernels themselves. Those
// compute in fp32, so a difference is taken along a direction in which every element moves: the
// rounding of one value is then nothing beside the change of all.
#include <cmath>
#include <utility>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/core/grad_mode.h"
#include "dtrain/ops.h"
#include "tests/runtime/operation_count.h"
#include "tests/runtime/ops_testing.h"

namespace dtrain::ops {
namespace {

using testing::Operation;
using testing::RandomLeaf;
using testing::Tensors;

// Odd, so that vectors have tails, and wide enough for whole ones.
constexpr int64_t kRows = 7;
constexpr int64_t kWidth = 37;

struct Case {
  std::string name;
  std::string fused;  // What the fused path announces.
  std::vector<std::vector<int64_t>> shapes;
  Operation run;
};

// Of this test alone: the default generator begins anew for each evaluation.
at::Tensor Random(at::IntArrayRef sizes) {
  static at::Generator generator = at::detail::createCPUGenerator(5);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble));
}

// The results, weighted at random, summed in fp64: a number that moves smoothly with the inputs.
double Weighted(const Tensors& results, const Tensors& seeds) {
  double sum = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    sum += (results[i].detach().to(at::kDouble) * seeds[i]).sum().item<double>();
  }
  return sum;
}

// |analytic - difference| beside the size that such a product has by chance.
double ErrorAlong(const Case& c, const Tensors& leaves, const Tensors& directions,
                  double scale_of_gradient) {
  const auto run = [&](const Tensors& in) {
    at::manual_seed(11);  // Dropout drops the same.
    return c.run(in);
  };
  const Tensors results = run(leaves);
  Tensors seeds;
  Tensors narrow;
  for (const at::Tensor& result : results) {
    narrow.push_back(Random(result.sizes()).to(at::kFloat));
    seeds.push_back(narrow.back().to(at::kDouble));
  }
  const Tensors gradients = torch::autograd::grad(results, leaves, narrow);
  double analytic = 0;
  double chance = 0;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor gradient = gradients[i].to(at::kDouble) * scale_of_gradient;
    analytic += (gradient * directions[i]).sum().item<double>();
    chance += gradient.square().mul(directions[i].square()).sum().item<double>();
  }
  // Fourth order: the step may be large enough for fp32.
  const at::NoGradGuard no_grad;
  constexpr double kStep = 0.02;
  const auto at = [&](double steps) {
    Tensors moved;
    for (size_t i = 0; i < leaves.size(); ++i) {
      moved.push_back((leaves[i].to(at::kDouble) + directions[i] * (steps * kStep)).to(at::kFloat));
    }
    return Weighted(run(moved), seeds);
  };
  const double difference = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * kStep);
  return std::abs(analytic - difference) / std::sqrt(chance);
}

std::vector<Case> Cases() {
  constexpr double kEps = 1e-5;
  const std::vector<int64_t> x = {kRows, kWidth};
  const std::vector<int64_t> w = {kWidth};
  const auto sum_and_norm = [](const NormOfSum& both) -> Tensors { return {both.y, both.sum}; };
  const auto heads = [](const Qkv& qkv) -> Tensors { return {qkv.q, qkv.k, qkv.v}; };
  const RopeTable table = MakeRopeTable(5, 6, 10000);
  const at::Tensor targets = at::randint(kWidth, {kRows}, at::kLong);
  targets[2] = -100;
  const CrossEntropyOptions options{.z_loss = 0.01, .label_smoothing = 0.1};
  const at::Tensor ids = at::randint(5, {kRows}, at::kLong);
  std::vector<Case> cases = {
      {"RmsNorm",
       "dtrain::rms_norm",
       {x, w},
       [](const Tensors& in) -> Tensors { return {RmsNorm(in[0], in[1], kEps)}; }},
      {"AddRmsNorm",
       "dtrain::rms_norm",
       {x, x, w},
       [=](const Tensors& in) { return sum_and_norm(AddRmsNorm(in[0], in[1], in[2], kEps)); }},
      {"LayerNorm",
       "dtrain::layer_norm",
       {x, w, w},
       [](const Tensors& in) -> Tensors { return {LayerNorm(in[0], in[1], in[2], kEps)}; }},
      {"AddLayerNorm",
       "dtrain::layer_norm",
       {x, x, w, w},
       [=](const Tensors& in) {
         return sum_and_norm(AddLayerNorm(in[0], in[1], in[2], in[3], kEps));
       }},
      {"SwiGlu",
       "dtrain::gated_unit",
       {x, x},
       [](const Tensors& in) -> Tensors { return {SwiGlu(in[0], in[1])}; }},
      {"SwiGlu of both",
       "dtrain::gated_unit",
       {{kRows, 2 * kWidth}},
       [](const Tensors& in) -> Tensors { return {SwiGlu(in[0])}; }},
      {"Embedding",
       "dtrain::embedding_backward",
       {{5, kWidth}},
       [=](const Tensors& in) -> Tensors { return {Embedding(ids, in[0])}; }},
      {"Dropout",
       "dtrain::dropout",
       {x},
       [](const Tensors& in) -> Tensors { return {Dropout(in[0], 0.3)}; }},
      {"CrossEntropy",
       "dtrain::cross_entropy",
       {x},
       [=](const Tensors& in) -> Tensors { return {CrossEntropy(in[0], targets, options).sum}; }},
      {"LinearCrossEntropy",
       "dtrain::linear_cross_entropy",
       {{kRows, 9}, {kWidth, 9}},
       [=](const Tensors& in) -> Tensors {
         return {LinearCrossEntropy(in[0], in[1], targets, options, 3).sum};
       }},
      {"MergedLinear",
       "dtrain::merged_linear",
       {x, {5, kWidth}, {3, kWidth}, {5}, {3}},
       [](const Tensors& in) -> Tensors {
         return {MergedLinear(in[0], {in[1], in[2]}, {in[3], in[4]})};
       }},
      {"TransposedLinear",
       "dtrain::transposed_linear",
       {x, {kWidth, 5}, {5}},
       [](const Tensors& in) -> Tensors { return {TransposedLinear(in[0], in[1], in[2])}; }}};
  for (const auto form : {GeluForm::kExact, GeluForm::kTanh}) {
    cases.push_back({"Gelu", "dtrain::activation", {x}, [=](const Tensors& in) -> Tensors {
                       return {Gelu(in[0], form)};
                     }});
    cases.push_back({"GeGlu", "dtrain::gated_unit", {x, x}, [=](const Tensors& in) -> Tensors {
                       return {GeGlu(in[0], in[1], form)};
                     }});
  }
  for (const auto form : {RopeForm::kHalfSplit, RopeForm::kInterleaved}) {
    cases.push_back({"Rope", "dtrain::rope", {{2, 5, 3, 8}}, [=](const Tensors& in) -> Tensors {
                       return {Rope(in[0], table, {.form = form})};
                     }});
    cases.push_back({"RopeQkv", "dtrain::rope_qkv", {{2, 5, 8 * 8}}, [=](const Tensors& in) {
                       return heads(RopeQkv(in[0], 4, 2, table, {.form = form}));
                     }});
  }
  return cases;
}

TEST(OpsGradcheck, GradientsAreTheFiniteDifferencesOfTheFp32Kernels) {
  at::manual_seed(10);
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    Tensors leaves;
    for (const auto& shape : c.shapes) {
      leaves.push_back(RandomLeaf(shape, at::kFloat));
    }
    {
      const dtrain::testing::OperationCount fused({c.fused});
      const Tensors results = c.run(leaves);
      Tensors ones;
      for (const at::Tensor& result : results) {
        ones.push_back(at::ones_like(result));
      }
      torch::autograd::grad(results, leaves, ones);
      EXPECT_GT(fused.Count(), 0) << "ATen's path is not what is checked";
    }
    // Each input alone, then all at once, which finds a gradient that went to another input.
    for (size_t moved = 0; moved <= leaves.size(); ++moved) {
      for (int direction = 0; direction < 3; ++direction) {
        Tensors directions;
        for (size_t i = 0; i < leaves.size(); ++i) {
          const bool moves = moved == leaves.size() || i == moved;
          directions.push_back(Random(leaves[i].sizes()) * (moves ? 1 : 0));
        }
        EXPECT_LT(ErrorAlong(c, leaves, directions, 1), 2e-3) << "input " << moved;
      }
    }
  }
}

// What the check above sees: a gradient that is two percent too long.
TEST(OpsGradcheck, AGradientThatIsSlightlyWrongIsFound) {
  at::manual_seed(12);
  for (const Case& c : Cases()) {
    Tensors leaves;
    for (const auto& shape : c.shapes) {
      leaves.push_back(RandomLeaf(shape, at::kFloat));
    }
    double most = 0;
    for (int draw = 0; draw < 8; ++draw) {
      Tensors directions;
      for (const auto& shape : c.shapes) {
        directions.push_back(Random(shape));
      }
      most = std::max(most, ErrorAlong(c, leaves, directions, 1.02));
    }
    EXPECT_GT(most, 4e-3) << c.name;
  }
}

}  // namespace
}  // namespace dtrain::ops
