// Several linear layers as one product, against at::linear of the weights put together: values,
// gradients, how many products that takes and what is kept for backward.
#include <gmock/gmock.h>

#include <memory>
#include <set>
#include <utility>

#include "c10/util/ThreadLocalDebugInfo.h"
#include "dtrain/ops.h"
#include "runtime/ops/gradient_home.h"
#include "tests/runtime/testing/operation_count.h"
#include "tests/runtime/testing/ops_testing.h"
#include "tests/runtime/testing/tensor_bytes.h"

namespace dtrain::ops::ops_linear_test {
namespace {

using testing::ExpectSame;
using testing::RandomLeaf;
using testing::Tensors;

constexpr int64_t kIn = 24;

// Leaves of `outs` rows: views of one storage, one after the other, or apart.
Tensors Weights(const std::vector<int64_t>& outs, at::ScalarType type, bool neighbours) {
  int64_t rows = 0;
  for (const int64_t out : outs) {
    rows += out;
  }
  const at::Tensor flat = at::randn({rows * kIn}, at::kDouble).to(type);
  Tensors weights;
  int64_t next = 0;
  for (const int64_t out : outs) {
    const at::Tensor weight = flat.narrow(0, next, out * kIn).view({out, kIn});
    weights.push_back((neighbours ? weight.detach() : weight.clone()).requires_grad_());
    next += out * kIn;
  }
  return weights;
}

// in: x, then weights, then as many biases or none.
Tensors Merged(const Tensors& in, size_t weights) {
  const at::TensorList all(in);
  return {MergedLinear(in[0], all.slice(1, weights), all.slice(1 + weights))};
}
Tensors PutTogether(const Tensors& in, size_t weights) {
  const at::TensorList all(in);
  const at::TensorList biases = all.slice(1 + weights);
  return {at::linear(in[0], at::cat(all.slice(1, weights)),
                     biases.empty() ? at::Tensor() : at::cat(biases))};
}

TEST(MergedLinearTest, EqualsOneLinearLayerForwardAndBackward) {
  at::manual_seed(1);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::vector<int64_t>& outs :
         std::vector<std::vector<int64_t>>{{16, 8, 8}, {7}, {1, 33}}) {
      for (const bool neighbours : {true, false}) {
        for (const bool biases : {true, false}) {
          Tensors leaves = {RandomLeaf({2, 5, kIn}, type)};
          for (const at::Tensor& weight : Weights(outs, type, neighbours)) {
            leaves.push_back(weight);
          }
          for (size_t i = 0; biases && i < outs.size(); ++i) {
            leaves.push_back(RandomLeaf({outs[i]}, type));
          }
          ExpectSame([&](const Tensors& in) { return Merged(in, outs.size()); },
                     [&](const Tensors& in) { return PutTogether(in, outs.size()); }, leaves,
                     type == at::kFloat ? 1e-5 : 0x1p-6);
        }
      }
    }
  }
}

TEST(MergedLinearTest, WhatIsFrozenGetsNoGradientAndTheRestTheSame) {
  at::manual_seed(2);
  const Tensors weights = Weights({16, 8, 8}, at::kFloat, true);
  const at::Tensor x = RandomLeaf({3, kIn}, at::kFloat);
  weights[1].requires_grad_(false);
  MergedLinear(x, weights).square().sum().backward();
  EXPECT_FALSE(weights[1].grad().defined());
  for (const size_t i : {0, 2}) {
    const at::Tensor wide = weights[i].detach().to(at::kDouble).requires_grad_();
    at::linear(x.detach().to(at::kDouble), wide).square().sum().backward();
    EXPECT_LT(testing::Distance(weights[i].grad(), wide.grad()), 1e-4) << i;
  }
}

TEST(MergedLinearTest, KeepsItsInputForWeightsThatTrainAlone) {
  at::manual_seed(5);
  for (const bool neighbours : {true, false}) {
    for (const bool one_trains : {false, true}) {
      const Tensors weights = Weights({16, 8, 8}, at::kFloat, neighbours);
      for (const at::Tensor& weight : weights) {
        weight.requires_grad_(false);
      }
      weights[1].requires_grad_(one_trains);
      const Tensors biases = {RandomLeaf({16}, at::kFloat), RandomLeaf({8}, at::kFloat),
                              RandomLeaf({8}, at::kFloat)};
      const at::Tensor leaf = RandomLeaf({2, 5, kIn}, at::kFloat);
      at::Tensor x = leaf * 3;  // The product by a number keeps no tensor for its backward.
      const auto storage = x.storage().getWeakStorageImpl();
      const at::Tensor y = MergedLinear(x, weights, biases);
      ASSERT_FALSE(storage.expired());
      x.reset();
      EXPECT_EQ(storage.expired(), !one_trains);
      const at::Tensor seed = at::randn_like(y);
      y.backward(seed);
      const at::Tensor wide = seed.to(at::kDouble);
      const at::Tensor first = wide.narrow(2, 0, 16);
      EXPECT_LT(
          testing::Distance(leaf.grad(), 3 * at::matmul(wide, at::cat(weights).to(at::kDouble))),
          1e-4);
      EXPECT_LT(testing::Distance(biases[0].grad(), first.sum(at::IntArrayRef({0, 1}))), 1e-5);
      EXPECT_EQ(weights[1].grad().defined(), one_trains);
    }
  }
}

TEST(MergedLinearTest, NeighboursTakeOneProductEachWay) {
  at::manual_seed(3);
  for (const bool neighbours : {true, false}) {
    const Tensors weights = Weights({16, 8, 8}, at::kFloat, neighbours);
    const at::Tensor x = RandomLeaf({3, kIn}, at::kFloat);
    const dtrain::testing::OperationCount products({"aten::mm"});
    at::Tensor y = MergedLinear(x, weights);
    EXPECT_EQ(products.Count(), neighbours ? 1 : 3);
    y.sum().backward();
    // Backward has a product for the gradient of the rows, then one for those of all weights.
    EXPECT_EQ(products.Count(), neighbours ? 1 + 2 : 3 + 2);
  }
}

// Places for weights of 8 x kIn elements, two at most, in a flat buffer.
class Homes : public GradientHomes {
 public:
  explicit Homes(Tensors weights) : weights_(std::move(weights)) {}
  GradientHome TakeHome(size_t index, bool can_add) override {
    const bool holds = std::exchange(taken_[index], true);
    return holds && !can_add ? GradientHome() : GradientHome{Place(index), holds};
  }
  at::Tensor Place(size_t index) const {
    return flat.narrow(0, static_cast<int64_t>(index) * 8, 8).view(weights_[index].sizes());
  }
  at::Tensor flat = at::full({16, kIn}, -1.0);

 private:
  const Tensors weights_;
  bool taken_[2] = {};
};

TEST(MergedLinearTest, GradientsAreWrittenWhereTheyBelong) {
  at::manual_seed(4);
  for (const bool one_frozen : {false, true}) {
    const Tensors weights = Weights({8, 8}, at::kFloat, true);
    weights[0].requires_grad_(!one_frozen);
    Homes homes(weights);
    const GradientHomesOf registered(weights, homes);
    const at::Tensor x = RandomLeaf({3, kIn}, at::kFloat);
    MergedLinear(x, weights).square().sum().backward();
    EXPECT_FALSE(weights[1].grad().defined()) << "it would be added twice";
    EXPECT_EQ(one_frozen, (homes.flat[0] == -1).all().item<bool>());
    const at::Tensor once = homes.flat.clone();
    MergedLinear(x, weights).square().sum().backward();  // The host's operations only fill.
    EXPECT_TRUE(homes.flat.equal(once));
    EXPECT_LT(testing::Distance(weights[1].grad(), once.narrow(0, 8, 8)), 1e-6);
  }
  // Whoever registered them is gone.
  const Tensors weights = Weights({8, 8}, at::kFloat, true);
  {
    Homes homes(weights);
    const GradientHomesOf registered(weights, homes);
  }
  MergedLinear(RandomLeaf({3, kIn}, at::kFloat), weights).square().sum().backward();
  EXPECT_TRUE(weights[0].grad().defined());
}

TEST(MergedLinearTest, AGradientThatSomebodyWaitsForGoesThroughAutograd) {
  at::manual_seed(6);
  const Tensors weights = Weights({8, 8}, at::kFloat, true);
  Homes homes(weights);
  const GradientHomesOf registered(weights, homes);
  const at::Tensor x = RandomLeaf({3, kIn}, at::kFloat);
  const auto loss = [&] { return MergedLinear(x, weights).square().sum(); };
  const auto asked = torch::autograd::grad({loss()}, weights);
  EXPECT_TRUE((homes.flat == -1).all().item<bool>());
  at::Tensor seen;
  weights[1].register_hook([&](const at::Tensor& gradient) { seen = gradient; });
  loss().backward();
  EXPECT_TRUE(seen.equal(asked[1]));
  EXPECT_TRUE((homes.flat.narrow(0, 8, 8) == -1).all().item<bool>());
  EXPECT_LT(testing::Distance(homes.flat.narrow(0, 0, 8), asked[0]), 1e-6);
}

TEST(TransposedLinearTest, IsALinearLayerOfTheTransposeForwardAndBackward) {
  at::manual_seed(7);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool biased : {true, false}) {
      Tensors leaves = {RandomLeaf({2, 5, kIn}, type), RandomLeaf({kIn, 17}, type)};
      if (biased) {
        leaves.push_back(RandomLeaf({17}, type));
      }
      const auto bias = [&](const Tensors& in) { return biased ? in[2] : at::Tensor(); };
      ExpectSame(
          [&](const Tensors& in) -> Tensors { return {TransposedLinear(in[0], in[1], bias(in))}; },
          [&](const Tensors& in) -> Tensors { return {at::linear(in[0], in[1].t(), bias(in))}; },
          leaves, type == at::kFloat ? 1e-5 : 0x1p-6);
    }
  }
  EXPECT_THROW(TransposedLinear(at::zeros({2, kIn}), at::zeros({8, kIn})), c10::ValueError);
  EXPECT_THROW(TransposedLinear(at::zeros({2, 8}), at::zeros({8, 3}), at::zeros({8})),
               c10::ValueError);
}

TEST(TransposedLinearTest, GradientsAreWrittenWhereTheyBelong) {
  at::manual_seed(8);
  const Tensors weights = {RandomLeaf({8, kIn}, at::kFloat)};
  Homes homes(weights);
  const GradientHomesOf registered(weights, homes);
  const at::Tensor x = RandomLeaf({3, 8}, at::kFloat);
  const at::Tensor y = TransposedLinear(x, weights[0]);
  const at::Tensor dy = at::randn_like(y);
  y.backward(dy);
  EXPECT_FALSE(weights[0].grad().defined());
  EXPECT_LT(testing::Distance(homes.flat.narrow(0, 0, 8),
                              at::mm(x.detach().t().to(at::kDouble), dy.to(at::kDouble))),
            1e-6);
}

TEST(GeluMlpTest, IsTwoLinearLayersAndGeluForwardAndBackwardWhateverIsFrozen) {
  at::manual_seed(10);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool biased : {true, false}) {
      for (const size_t frozen : {0, 1, 2}) {  // 0: nothing.
        Tensors leaves = {RandomLeaf({2, 5, kIn}, type), RandomLeaf({kIn, 17}, type, 0.2),
                          RandomLeaf({17, 6}, type, 0.2)};
        if (biased) {
          leaves.insert(leaves.end(), {RandomLeaf({17}, type), RandomLeaf({6}, type)});
        }
        const auto biases = [&](const Tensors& in) {
          return biased ? Tensors{in[3], in[4]} : Tensors();
        };
        const at::Tensor held = leaves[frozen].detach();
        const auto with_held = [&](Tensors in) {
          if (frozen > 0) {
            in[frozen] = held.to(in[0].scalar_type());
          }
          return in;
        };
        ExpectSame(
            [&](const Tensors& all) -> Tensors {
              const Tensors in = with_held(all);
              return {GeluMlp(in[0], in[1], in[2], biases(in)) + 0 * all[frozen].sum()};
            },
            [&](const Tensors& all) -> Tensors {
              const Tensors in = with_held(all);
              const at::Tensor up = at::matmul(in[0], in[1]);
              const at::Tensor inner = at::gelu(biased ? up + in[3] : up, "tanh");
              const at::Tensor y = at::matmul(inner, in[2]);
              return {(biased ? y + in[4] : y) + 0 * all[frozen].sum()};
            },
            leaves, type == at::kFloat ? 1e-5 : 0x1p-6);
      }
    }
  }
  const at::Tensor x = at::zeros({2, 8});
  EXPECT_THROW(GeluMlp(x, at::zeros({7, 4}), at::zeros({4, 8})), c10::ValueError);
  EXPECT_THROW(GeluMlp(x, at::zeros({8, 4}), at::zeros({5, 8})), c10::ValueError);
  EXPECT_THROW(GeluMlp(x, at::zeros({8, 4}), at::zeros({4, 8}), {at::zeros({4})}), c10::ValueError);
}

TEST(GeluMlpTest, NamesABiasThatDoesNotFit) {
  const at::Tensor x = at::zeros({2, 8});
  const at::Tensor up = at::zeros({8, 4});
  const at::Tensor down = at::zeros({4, 8});
  const at::Tensor of_up = at::zeros({4});
  const at::Tensor of_down = at::zeros({8});
  for (const Tensors& biases :
       {Tensors{of_down, of_up}, Tensors{at::zeros({1}), of_down}, Tensors{of_up, at::zeros({1})},
        Tensors{of_up, at::zeros({1, 8})}}) {
    try {
      GeluMlp(x, up, down, biases);
      FAIL() << biases[0].sizes() << " and " << biases[1].sizes() << " were taken";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  ::testing::HasSubstr("takes a bias [out] for a weight [in, out], not ["));
    }
  }
}

TEST(GeluMlpTest, GradientsAreWrittenWhereTheyBelong) {
  at::manual_seed(11);
  const Tensors weights = {RandomLeaf({8, kIn}, at::kFloat), RandomLeaf({kIn, 8}, at::kFloat)};
  const at::Tensor x = RandomLeaf({3, 8}, at::kFloat);
  const auto loss = [&] { return GeluMlp(x, weights[0], weights[1]).square().sum(); };
  const Tensors expected = torch::autograd::grad({loss()}, weights);
  Homes homes(weights);
  const GradientHomesOf registered(weights, homes);
  loss().backward();
  for (const size_t i : {0, 1}) {
    EXPECT_FALSE(weights[i].grad().defined()) << i;
    EXPECT_LT(testing::Distance(homes.Place(i), expected[i]), 1e-6) << i;
  }
}

// Products of a micro-batch's backward where `trains` of x, up, down, and the two biases.
int BackwardProducts(const std::set<size_t>& trains) {
  Tensors in = {RandomLeaf({3, 8}, at::kFloat), RandomLeaf({8, 16}, at::kFloat),
                RandomLeaf({16, 6}, at::kFloat), RandomLeaf({16}, at::kFloat),
                RandomLeaf({6}, at::kFloat)};
  for (size_t i = 0; i < in.size(); ++i) {
    in[i].requires_grad_(trains.count(i) > 0);
  }
  const at::Tensor y = GeluMlp(in[0], in[1], in[2], {in[3], in[4]});
  const dtrain::testing::OperationCount products({"aten::mm"});
  y.sum().backward();
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(in[i].grad().defined(), trains.count(i) > 0) << i;
  }
  return products.Count();
}

TEST(GeluMlpTest, BackwardPassesGeluOnlyForWhatTrainsBelowIt) {
  EXPECT_EQ(BackwardProducts({0, 1, 2, 3, 4}), 4);
  EXPECT_EQ(BackwardProducts({4}), 0);
  EXPECT_EQ(BackwardProducts({2, 4}), 1);
  EXPECT_EQ(BackwardProducts({3}), 1);
  EXPECT_EQ(BackwardProducts({0}), 2);
  EXPECT_EQ(BackwardProducts({1}), 2);
}

// The most bytes that `run` has allocated at once, in units of an [m, inner] tensor of fp32.
template <class Run>
double PeakInners(int64_t inner_elements, Run run) {
  const auto bytes = std::make_shared<dtrain::testing::TensorBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
  run();
  return static_cast<double>(bytes->peak()) / 4 / static_cast<double>(inner_elements);
}

TEST(GeluMlpTest, HoldsNoMoreThanItsPartsTake) {
  constexpr int64_t kRows = 512;
  constexpr int64_t kInner = 256;
  const auto peak = [](const auto& run) { return PeakInners(kRows * kInner, run); };
  const at::Tensor x = RandomLeaf({kRows, 4}, at::kFloat);
  const Tensors weights = {RandomLeaf({4, kInner}, at::kFloat),
                           RandomLeaf({kInner, 4}, at::kFloat)};
  at::Tensor y;
  const auto forward = [&] { y = GeluMlp(x, weights[0], weights[1]); };
  EXPECT_NEAR(peak(forward), 2, 0.2) << "GELU's input and its result are kept";
  EXPECT_NEAR(peak([&] { y.sum().backward(); }), 1, 0.2) << "and one gradient comes to them";
  weights[1].requires_grad_(false);
  EXPECT_NEAR(peak([&] { forward(), y.sum().backward(); }), 2, 0.2);
  weights[1].requires_grad_();
  const at::Tensor frozen = x.detach();
  weights[0].requires_grad_(false);
  EXPECT_NEAR(peak([&] { y = GeluMlp(frozen, weights[0], weights[1]); }), 1, 0.2)
      << "nothing below GELU trains";
  const at::NoGradGuard no_graph;
  EXPECT_NEAR(peak(forward), 1, 0.2) << "there is no backward";
}

TEST(LinearCrossEntropyTest, TheGradientOfTheHeadIsWrittenWhereItBelongsInFp32) {
  at::manual_seed(9);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensors weights = {RandomLeaf({8, kIn}, type)};
    const at::Tensor hidden = RandomLeaf({7, kIn}, type);
    const at::Tensor targets = at::randint(8, {7}, at::kLong);
    const auto loss = [&](const at::Tensor& weight) {
      return LinearCrossEntropy(hidden, weight, targets, {}, 3).sum * 0.25;
    };
    const at::Tensor alone = weights[0].detach().clone().requires_grad_();
    loss(alone).backward();
    Homes homes(weights);
    const GradientHomesOf registered(weights, homes);
    loss(weights[0]).backward();
    EXPECT_FALSE(weights[0].grad().defined());
    const at::Tensor home = homes.flat.narrow(0, 0, 8);
    EXPECT_LT(testing::Distance(home, alone.grad()), type == at::kFloat ? 1e-6 : 0x1p-8);
    EXPECT_TRUE(home.to(type).equal(alone.grad())) << "its one rounding was that to the type";
  }
}

TEST(MergedLinearTest, TakesNoRowsAndNamesShapesThatDoNotFit) {
  const Tensors weights = Weights({16, 8}, at::kFloat, true);
  EXPECT_EQ(MergedLinear(at::zeros({0, kIn}), weights).sizes(), at::IntArrayRef({0, 24}));
  EXPECT_THROW(MergedLinear(at::zeros({2, kIn}), {}), c10::ValueError);
  EXPECT_THROW(MergedLinear(at::zeros({2, kIn + 1}), weights), c10::ValueError);
  EXPECT_THROW(MergedLinear(at::zeros({2, kIn}), weights, {at::zeros({16})}), c10::ValueError);
  EXPECT_THROW(MergedLinear(at::zeros({2, kIn}), weights, {at::zeros({16}), at::zeros({9})}),
               c10::ValueError);
}

}  // namespace
}  // namespace dtrain::ops::ops_linear_test
