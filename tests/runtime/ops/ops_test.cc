// Fused norms and activations against ATen's composites in fp64: values and gradients.
#include "dtrain/ops.h"

#include "tests/runtime/testing/ops_testing.h"

namespace dtrain::ops::ops_test {
namespace {

using testing::Distance;
using testing::ExpectSame;
using testing::RandomLeaf;
using testing::Tensors;

// fp32: a few roundings and sums of some hundred terms. bf16: a rounding is 2^-9 of the value, and
// the composite of the fallback has several.
double Tolerance(at::ScalarType type) { return type == at::kFloat ? 1e-5 : 0x1p-7; }

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

TEST(OpsTest, RmsNormEqualsAtenForwardAndBackward) {
  at::manual_seed(1);
  for (const at::ScalarType type : kTypes) {
    for (const int64_t hidden : {1, 7, 64, 257}) {
      SCOPED_TRACE(hidden);
      const auto norm = [=](const Tensors& in) -> Tensors {
        return {at::rms_norm(in[0], {hidden}, in[1], 1e-5)};
      };
      ExpectSame([](const Tensors& in) -> Tensors { return {RmsNorm(in[0], in[1], 1e-5)}; }, norm,
                 {RandomLeaf({3, 5, hidden}, type), RandomLeaf({hidden}, type)}, Tolerance(type));
    }
  }
}

TEST(OpsTest, LayerNormEqualsAtenForwardAndBackwardWithBiasAndWithout) {
  at::manual_seed(2);
  for (const at::ScalarType type : kTypes) {
    for (const int64_t hidden : {2, 7, 64, 257}) {
      SCOPED_TRACE(hidden);
      const Tensors leaves = {RandomLeaf({3, 5, hidden}, type), RandomLeaf({hidden}, type),
                              RandomLeaf({hidden}, type)};
      ExpectSame(
          [](const Tensors& in) -> Tensors { return {LayerNorm(in[0], in[1], in[2], 1e-3)}; },
          [=](const Tensors& in) -> Tensors {
            return {at::layer_norm(in[0], {hidden}, in[1], in[2], 1e-3)};
          },
          leaves, Tolerance(type));
      ExpectSame([](const Tensors& in) -> Tensors { return {LayerNorm(in[0], in[1], {}, 1e-3)}; },
                 [=](const Tensors& in) -> Tensors {
                   return {at::layer_norm(in[0], {hidden}, in[1], {}, 1e-3)};
                 },
                 {leaves[0], leaves[1]}, Tolerance(type));
    }
  }
}

TEST(OpsTest, NormsOfASumGiveBothResultsAndTakeBothGradients) {
  at::manual_seed(3);
  for (const int64_t hidden : {2, 48, 257}) {
    SCOPED_TRACE(hidden);
    const Tensors leaves = {RandomLeaf({3, 5, hidden}, at::kFloat),
                            RandomLeaf({3, 5, hidden}, at::kFloat),
                            RandomLeaf({hidden}, at::kFloat), RandomLeaf({hidden}, at::kFloat)};
    ExpectSame(
        [](const Tensors& in) -> Tensors {
          const NormOfSum out = AddRmsNorm(in[0], in[1], in[2], 1e-5);
          return {out.y, out.sum};
        },
        [=](const Tensors& in) -> Tensors {
          const at::Tensor sum = in[0] + in[1];
          return {at::rms_norm(sum, {hidden}, in[2], 1e-5), sum};
        },
        {leaves[0], leaves[1], leaves[2]}, 1e-5);
    ExpectSame(
        [](const Tensors& in) -> Tensors {
          const NormOfSum out = AddLayerNorm(in[0], in[1], in[2], in[3], 1e-3);
          return {out.y, out.sum};
        },
        [=](const Tensors& in) -> Tensors {
          const at::Tensor sum = in[0] + in[1];
          return {at::layer_norm(sum, {hidden}, in[2], in[3], 1e-3), sum};
        },
        leaves, 1e-5);
  }
}

TEST(OpsTest, NormsOfASumWorkWhenOneOfTheResultsHasNoGradient) {
  at::manual_seed(4);
  const Tensors leaves = {RandomLeaf({6, 33}, at::kFloat), RandomLeaf({6, 33}, at::kFloat),
                          RandomLeaf({33}, at::kFloat), RandomLeaf({33}, at::kFloat)};
  for (const bool norm_only : {true, false}) {
    const auto rms = [=](const Tensors& in) -> Tensors {
      const NormOfSum out = AddRmsNorm(in[0], in[1], in[2], 1e-5);
      return {norm_only ? out.y : out.sum + 0 * in[2].sum()};
    };
    const auto layer = [=](const Tensors& in) -> Tensors {
      const NormOfSum out = AddLayerNorm(in[0], in[1], in[2], in[3], 1e-5);
      return {norm_only ? out.y : out.sum + 0 * (in[2].sum() + in[3].sum())};
    };
    const auto wide_rms = [=](const Tensors& in) -> Tensors {
      const at::Tensor sum = in[0] + in[1];
      return {norm_only ? at::rms_norm(sum, {33}, in[2], 1e-5) : sum + 0 * in[2].sum()};
    };
    const auto wide_layer = [=](const Tensors& in) -> Tensors {
      const at::Tensor sum = in[0] + in[1];
      return {norm_only ? at::layer_norm(sum, {33}, in[2], in[3], 1e-5)
                        : sum + 0 * (in[2].sum() + in[3].sum())};
    };
    ExpectSame(rms, wide_rms, {leaves[0], leaves[1], leaves[2]}, 1e-5);
    ExpectSame(layer, wide_layer, leaves, 1e-5);
  }
}

TEST(OpsTest, GeluEqualsAtenInBothForms) {
  at::manual_seed(5);
  for (const at::ScalarType type : kTypes) {
    for (const GeluForm form : {GeluForm::kExact, GeluForm::kTanh}) {
      const char* const name = form == GeluForm::kTanh ? "tanh" : "none";
      ExpectSame([=](const Tensors& in) -> Tensors { return {Gelu(in[0], form)}; },
                 [=](const Tensors& in) -> Tensors { return {at::gelu(in[0], name)}; },
                 {RandomLeaf({7, 129}, type, 3)}, Tolerance(type));
    }
  }
}

TEST(OpsTest, GatedUnitsEqualAtenApartAndFromAFusedBuffer) {
  at::manual_seed(6);
  const auto tanh = [](const at::Tensor& x) { return at::gelu(x, "tanh"); };
  const auto exact = [](const at::Tensor& x) { return at::gelu(x, "none"); };
  const auto silu = [](const at::Tensor& x) { return at::silu(x); };
  using Activation = std::function<at::Tensor(const at::Tensor&)>;
  struct Unit {
    std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> apart;
    std::function<at::Tensor(const at::Tensor&)> fused;
    Activation activation;
  };
  const std::vector<Unit> units = {
      {[](const at::Tensor& g, const at::Tensor& u) { return SwiGlu(g, u); },
       [](const at::Tensor& both) { return SwiGlu(both); }, silu},
      {[](const at::Tensor& g, const at::Tensor& u) { return GeGlu(g, u, GeluForm::kExact); },
       [](const at::Tensor& both) { return GeGlu(both, GeluForm::kExact); }, exact},
      {[](const at::Tensor& g, const at::Tensor& u) { return GeGlu(g, u, GeluForm::kTanh); },
       [](const at::Tensor& both) { return GeGlu(both, GeluForm::kTanh); }, tanh},
  };
  for (const at::ScalarType type : kTypes) {
    for (const int64_t hidden : {1, 9, 512}) {
      for (const Unit& unit : units) {
        SCOPED_TRACE(hidden);
        ExpectSame([&](const Tensors& in) -> Tensors { return {unit.apart(in[0], in[1])}; },
                   [&](const Tensors& in) -> Tensors { return {unit.activation(in[0]) * in[1]}; },
                   {RandomLeaf({4, hidden}, type, 4), RandomLeaf({4, hidden}, type)},
                   4 * Tolerance(type));
        ExpectSame([&](const Tensors& in) -> Tensors { return {unit.fused(in[0])}; },
                   [&](const Tensors& in) -> Tensors {
                     const Tensors halves = in[0].chunk(2, -1);
                     return {unit.activation(halves[0]) * halves[1]};
                   },
                   {RandomLeaf({2, 3, 2 * hidden}, type, 2)}, 4 * Tolerance(type));
      }
    }
  }
}

TEST(OpsTest, WhatTheKernelsDoNotCoverFallsBackToAten) {
  const at::Tensor x = at::randn({4, 6}, at::kDouble).requires_grad_();
  const at::Tensor weight = at::randn({6}, at::kDouble);
  EXPECT_LT(Distance(RmsNorm(x, weight, 1e-6), at::rms_norm(x, {6}, weight, 1e-6)), 1e-12);
  EXPECT_LT(
      Distance(LayerNorm(x, weight, weight, 1e-6), at::layer_norm(x, {6}, weight, weight, 1e-6)),
      1e-12);
  EXPECT_LT(Distance(AddRmsNorm(x, x, weight, 1e-6).sum, 2 * x), 1e-12);
  EXPECT_LT(Distance(Gelu(x, GeluForm::kExact), at::gelu(x, "none")), 1e-12);
  const at::Tensor strided = at::randn({6, 4}).t();
  EXPECT_LT(Distance(SwiGlu(strided, strided), at::silu(strided) * strided), 1e-6);
  EXPECT_LT(Distance(GeGlu(strided, GeluForm::kTanh),
                     at::gelu(strided.narrow(1, 0, 3), "tanh") * strided.narrow(1, 3, 3)),
            1e-6);
}

TEST(OpsTest, AGradientThatIsNotContiguousIsTaken) {
  const at::Tensor x = at::randn({4, 6}).requires_grad_();
  const at::Tensor weight = at::ones({6});
  RmsNorm(x, weight, 1e-6).sum().backward();  // sum's gradient is an expanded scalar.
  LayerNorm(x, weight, weight, 1e-6).sum().backward();
  SwiGlu(x).sum().backward();
  Gelu(x, GeluForm::kTanh).sum().backward();
  EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
}

TEST(OpsTest, ABufferThatHasNoTwoHalvesIsRefusedWithItsShape) {
  try {
    SwiGlu(at::randn({4, 7}));
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("[..., 2 hidden], not [4, 7]"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace dtrain::ops::ops_test
