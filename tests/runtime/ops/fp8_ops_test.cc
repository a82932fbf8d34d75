// Linear layers in FP8 against what their codes stand for, with and without shared scales.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/core/grad_mode.h"
#include "c10/core/InferenceMode.h"
#include "dtrain/fp8.h"
#include "runtime/ops/fp8_matrix.h"
#include "runtime/ops/fp8_weight_codes.h"
#include "tests/runtime/testing/operation_count.h"
#include "tests/runtime/testing/ops_testing.h"

namespace dtrain::ops::fp8_ops_test {
namespace {

using kernels::Fp8Format;
using Scaling = Fp8Options::Scaling;
using testing::Distance;
using testing::RandomLeaf;

// Every way to round, by its share of a value: half the spacing of 3 or 2 bits of mantissa.
constexpr double kE4m3Error = 0x1p-4;
constexpr double kE5m2Error = 0x1p-3;

at::Tensor Decode(const Fp8Matrix& matrix) {
  return matrix.codes.to(at::kDouble) * matrix.inverse.to(at::kDouble);
}

TEST(Fp8MatrixTest, IsWithinARoundingOfWhatItStandsForAndUsesTheWholeRange) {
  at::manual_seed(1);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = (at::randn({48, 32}) * at::arange(1, 49).view({48, 1})).to(type);
    for (const Scaling scaling : {Scaling::kTensorwise, Scaling::kRowwise}) {
      for (const Fp8Format format : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
        const Fp8Matrix matrix = ToFp8(x, format, scaling);
        const bool rowwise = scaling == Scaling::kRowwise;
        EXPECT_EQ(matrix.inverse.dim(), rowwise ? 2 : 0);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(matrix.inverse.const_data_ptr()) % 16, 0U)
            << "cublasLt takes no scale there";
        const at::Tensor largest = rowwise ? matrix.codes.to(at::kFloat).abs().amax(1)
                                           : matrix.codes.to(at::kFloat).abs().amax();
        EXPECT_TRUE(largest.eq(kernels::Fp8Largest(format)).all().item<bool>());
        const double error = format == Fp8Format::kE4m3 ? kE4m3Error : kE5m2Error;
        // Beside the relative error, the spacing of subnormal codes.
        const at::Tensor allowed =
            x.to(at::kDouble).abs() * error + matrix.inverse.to(at::kDouble) * 0x1p-9;
        EXPECT_TRUE((Decode(matrix) - x.to(at::kDouble)).abs().le(allowed).all().item<bool>());
      }
    }
  }
}

TEST(Fp8MatrixTest, ZerosStayZerosAndWhatIsNotFiniteIsNan) {
  for (const Scaling scaling : {Scaling::kTensorwise, Scaling::kRowwise}) {
    EXPECT_TRUE(
        Decode(ToFp8(at::zeros({16, 16}), Fp8Format::kE4m3, scaling)).eq(0).all().item<bool>());
    for (const double bad :
         {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      at::Tensor x = at::ones({16, 16});
      x[3][4] = bad;
      const at::Tensor back = Decode(ToFp8(x, Fp8Format::kE5m2, scaling));
      EXPECT_TRUE(back[3].isnan().all().item<bool>()) << "a cast saturates: nothing else tells";
      EXPECT_EQ(back[2].isnan().any().item<bool>(), scaling == Scaling::kTensorwise);
    }
  }
}

TEST(Fp8LinearTest, ForwardAndBackwardAreTheProductsOfTheCodes) {
  at::manual_seed(2);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const Scaling scaling : {Scaling::kTensorwise, Scaling::kRowwise}) {
      for (const auto gradients : {Fp8Options::Gradients::kE5m2, Fp8Options::Gradients::kE4m3}) {
        const Fp8Options options{.enabled = true, .scaling = scaling, .gradients = gradients};
        const Fp8Format format =
            gradients == Fp8Options::Gradients::kE5m2 ? Fp8Format::kE5m2 : Fp8Format::kE4m3;
        const at::Tensor x = RandomLeaf({4, 12, 64}, type);
        const at::Tensor weight = RandomLeaf({32, 64}, type);
        const at::Tensor bias = RandomLeaf({32}, type);
        const at::Tensor y = Fp8Linear(x, weight, bias, options);
        ASSERT_EQ(y.sizes(), at::IntArrayRef({4, 12, 32}));
        ASSERT_EQ(y.scalar_type(), type);
        const at::Tensor dy = at::randn_like(y);
        const auto got = torch::autograd::grad({y}, {x, weight, bias}, {dy});
        const at::Tensor rows = x.detach().reshape({48, 64});
        const at::Tensor drows = dy.reshape({48, 32});
        const auto turned = [&](const at::Tensor& matrix, Fp8Format of) {
          return Decode(ToFp8(matrix.t().contiguous(), of, scaling));
        };
        const auto as_is = [&](const at::Tensor& matrix, Fp8Format of) {
          return Decode(ToFp8(matrix.detach(), of, scaling));
        };
        const at::Tensor expected =
            as_is(rows, Fp8Format::kE4m3).mm(as_is(weight, Fp8Format::kE4m3).t()) + bias.detach();
        const at::Tensor dx =
            as_is(drows, format).mm(turned(weight.detach(), Fp8Format::kE4m3).t());
        const at::Tensor dweight = turned(drows, format).mm(turned(rows, Fp8Format::kE4m3).t());
        // One rounding to the type, and fp32 sums.
        const double tolerance = type == at::kFloat ? 1e-5 : 0x1p-7;
        EXPECT_LT(Distance(y.reshape({48, 32}), expected), tolerance);
        EXPECT_LT(Distance(got[0].reshape({48, 64}), dx), tolerance);
        EXPECT_LT(Distance(got[1], dweight), tolerance);
        EXPECT_LT(Distance(got[2], drows.to(at::kDouble).sum(0)), 4 * tolerance);
      }
    }
  }
}

// Weights of one call share scales and codes of x: what they are beside each other is one layer.
TEST(Fp8LinearTest, SeveralWeightsAreOneLayerOfThemPutTogether) {
  at::manual_seed(5);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const Scaling scaling : {Scaling::kTensorwise, Scaling::kRowwise}) {
      for (const bool neighbours : {true, false}) {
        for (const bool biased : {true, false}) {
          const Fp8Options options{.enabled = true, .scaling = scaling};
          const at::Tensor both = at::randn({48, 64}).to(type);
          std::vector<at::Tensor> weights;
          for (const at::Tensor& part : {both.narrow(0, 0, 32), both.narrow(0, 32, 16)}) {
            weights.push_back((neighbours ? part.detach() : part.clone()).requires_grad_());
          }
          const at::Tensor bias = RandomLeaf({48}, type);
          const std::vector<at::Tensor> biases =
              biased ? std::vector{bias.narrow(0, 0, 32), bias.narrow(0, 32, 16)}
                     : std::vector<at::Tensor>();
          const at::Tensor x = RandomLeaf({2, 24, 64}, type);
          const at::Tensor y = MergedFp8Linear(x, weights, biases, options);
          const at::Tensor one = both.clone().requires_grad_();
          const at::Tensor expected = Fp8Linear(x, one, biased ? bias : at::Tensor(), options);
          EXPECT_TRUE(y.equal(expected));
          const at::Tensor dy = at::randn_like(y);
          const auto got = torch::autograd::grad({y}, {x, weights[0], weights[1]}, {dy});
          const auto wanted = torch::autograd::grad({expected}, {x, one}, {dy});
          EXPECT_TRUE(got[0].equal(wanted[0]));
          EXPECT_TRUE(at::cat({got[1], got[2]}).equal(wanted[1]));
        }
      }
    }
  }
}

TEST(Fp8LinearTest, OfSeveralWeightsWhatIsFrozenGetsNoGradient) {
  at::manual_seed(6);
  const at::Tensor x = RandomLeaf({16, 32}, at::kFloat);
  const std::vector<at::Tensor> weights = {RandomLeaf({16, 32}, at::kFloat),
                                           RandomLeaf({32, 32}, at::kFloat)};
  weights[0].requires_grad_(false);
  MergedFp8Linear(x, weights, {}, {.enabled = true}).square().sum().backward();
  EXPECT_FALSE(weights[0].grad().defined());
  EXPECT_EQ(weights[1].grad().sizes(), weights[1].sizes());
  EXPECT_EQ(
      MergedFp8Linear(at::zeros({16, 32}), {at::zeros({8, 32})}, {}, {.enabled = true}).sizes(),
      at::IntArrayRef({16, 8}))
      << "what does not fit is MergedLinear's";
  EXPECT_THROW(MergedFp8Linear(x, {at::zeros({16, 16})}, {}, {.enabled = true}), c10::ValueError);
}

TEST(Fp8LinearTest, RowsOfTheirOwnScaleKeepSmallNumbersBesideLargeOnes) {
  at::manual_seed(3);
  at::Tensor x = at::randn({32, 64});
  x[0].mul_(1e6);
  const at::Tensor weight = at::randn({16, 64});
  const at::Tensor exact = at::linear(x, weight).slice(0, 1);
  const auto error = [&](Scaling scaling) {
    const at::Tensor y =
        Fp8Linear(x, weight, {}, {.enabled = true, .scaling = scaling}).slice(0, 1);
    return ((y - exact).norm() / exact.norm()).item<double>();
  };
  EXPECT_LT(error(Scaling::kRowwise), 0.06);
  EXPECT_GT(error(Scaling::kTensorwise), 0.5) << "they are below the smallest code";
}

TEST(Fp8LinearTest, WhatNoFp8UnitTakesIsAnOrdinaryProduct) {
  at::manual_seed(4);
  const Fp8Options on{.enabled = true};
  for (const auto& [m, n, k] :
       std::vector<std::array<int64_t, 3>>{{15, 16, 16}, {16, 24, 16}, {16, 16, 8}, {0, 16, 16}}) {
    const at::Tensor x = at::randn({m, k});
    const at::Tensor weight = at::randn({n, k});
    EXPECT_TRUE(Fp8Linear(x, weight, {}, on).equal(at::linear(x, weight))) << m << n << k;
  }
  const at::Tensor x = at::randn({16, 16});
  EXPECT_TRUE(Fp8Linear(x, x, {}, {}).equal(at::linear(x, x))) << "off";
  EXPECT_TRUE(Fp8Linear(x.to(at::kDouble), x.to(at::kDouble), {}, on)
                  .equal(at::linear(x.to(at::kDouble), x.to(at::kDouble))));
  EXPECT_FALSE(Fp8Linear(x, x, {}, on).equal(at::linear(x, x)));
  EXPECT_TRUE(Fp8Linear(x, x.t(), {}, on).equal(Fp8Linear(x, x.t().contiguous(), {}, on)));
  EXPECT_FALSE(Fp8Linear(x, x.t(), {}, on).equal(at::linear(x, x.t()))) << "GPT-2's are FP8 too";
}

// y, dx and dweight of a micro-batch.
std::vector<at::Tensor> MicroBatch(const at::Tensor& x, const at::Tensor& weight, Scaling scaling) {
  const at::Tensor y = Fp8Linear(x, weight, {}, {.enabled = true, .scaling = scaling});
  auto all = torch::autograd::grad({y}, {x, weight}, {at::ones_like(y)});
  all.push_back(y.detach());
  return all;
}

void ExpectBits(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i].equal(expected[i])) << i;
  }
}

int CodesMadeIn(const std::function<void()>& work) {
  const dtrain::testing::OperationCount made({"dtrain::fp8_weight_codes"});
  work();
  return made.Count();
}

class KeptWeightCodesTest : public ::testing::TestWithParam<Scaling> {
 protected:
  std::vector<at::Tensor> Micro() const { return MicroBatch(x_, weight_, GetParam()); }
  // With codes of the weight as it is now.
  std::vector<at::Tensor> Fresh() const {
    const at::Tensor same = weight_.detach().clone().requires_grad_();
    return MicroBatch(x_, same, GetParam());
  }
  const at::Tensor x_ = RandomLeaf({48, 64}, at::kBFloat16);
  at::Tensor weight_ = RandomLeaf({32, 64}, at::kBFloat16);
};

TEST_P(KeptWeightCodesTest, MicroBatchesOfAnOpeningShareThemToTheBit) {
  const auto expected = Fresh();
  KeptWeightCodes codes({weight_});
  const auto three = [&] {
    for (int micro = 0; micro < 3; ++micro) {
      ExpectBits(Micro(), expected);
    }
  };
  EXPECT_EQ(CodesMadeIn(three), 6) << "closed";
  codes.Open();
  EXPECT_EQ(CodesMadeIn(three), 2) << "as it is, and transposed";
  EXPECT_EQ(CodesMadeIn([&] { Fresh(); }), 2) << "of another weight";
  codes.Close();
  EXPECT_EQ(CodesMadeIn(three), 6);
  codes.Open();
  EXPECT_EQ(CodesMadeIn(three), 2) << "codes of the last opening are gone";
}

TEST_P(KeptWeightCodesTest, AWeightThatWasWrittenOrMovedHasNewOnes) {
  KeptWeightCodes codes({weight_});
  codes.Open();
  Micro();
  {
    const at::NoGradGuard no_grad;
    weight_.mul_(-3).add_(0.1);
  }
  EXPECT_EQ(CodesMadeIn([&] { ExpectBits(Micro(), Fresh()); }), 4);
  EXPECT_EQ(CodesMadeIn([&] { Micro(); }), 0);
  weight_.set_data(at::randn({32, 64}).to(at::kBFloat16));
  EXPECT_EQ(CodesMadeIn([&] { ExpectBits(Micro(), Fresh()); }), 4);
  const Scaling other = GetParam() == Scaling::kRowwise ? Scaling::kTensorwise : Scaling::kRowwise;
  EXPECT_EQ(CodesMadeIn([&] { MicroBatch(x_, weight_, other); }), 2);
}

TEST_P(KeptWeightCodesTest, SeveralWeightsHaveCodesTogetherAndEachOfThemIsWatched) {
  at::Tensor second = RandomLeaf({16, 64}, at::kBFloat16);
  const auto micro = [&] {
    const at::Tensor y =
        MergedFp8Linear(x_, {weight_, second}, {}, {.enabled = true, .scaling = GetParam()});
    torch::autograd::grad({y}, {x_, weight_}, {at::ones_like(y)});
    return y.detach();
  };
  KeptWeightCodes codes({weight_, second});
  codes.Open();
  EXPECT_EQ(CodesMadeIn(micro), 2);
  EXPECT_EQ(CodesMadeIn(micro), 0);
  const at::Tensor before = micro();
  {
    const at::NoGradGuard no_grad;
    second.mul_(2);
  }
  EXPECT_EQ(CodesMadeIn([&] { EXPECT_FALSE(micro().equal(before)); }), 2);
  EXPECT_EQ(CodesMadeIn([&] { Micro(); }), 2) << "the first alone is another matrix";
  const at::Tensor strange = RandomLeaf({16, 64}, at::kBFloat16);
  const auto with_strange = [&] {
    MergedFp8Linear(x_, {weight_, strange}, {}, {.enabled = true, .scaling = GetParam()});
  };
  EXPECT_EQ(CodesMadeIn(with_strange), 1);
  EXPECT_EQ(CodesMadeIn(with_strange), 1) << "nobody watches the other";
}

TEST_P(KeptWeightCodesTest, AWriteThatLibTorchDoesNotCountIsTold) {
  KeptWeightCodes codes({weight_});
  codes.Open();
  Micro();
  KeptWeightCodes::NoteWrites();
  weight_.mutable_data_ptr<at::BFloat16>()[5] = 7.0F;  // Writes as an engine's update does.
  EXPECT_EQ(CodesMadeIn([&] { ExpectBits(Micro(), Fresh()); }), 4);
  EXPECT_EQ(CodesMadeIn([&] { Micro(); }), 0);
}

TEST_P(KeptWeightCodesTest, WhatIsCapturedNeitherReadsNorLeavesAny) {
  KeptWeightCodes codes({weight_});
  codes.Open();
  {
    const WithoutKeptCodes fresh;
    EXPECT_EQ(CodesMadeIn([&] { Micro(); }), 2);
  }
  EXPECT_EQ(CodesMadeIn([&] { Micro(); }), 2);
  {
    const WithoutKeptCodes fresh;
    EXPECT_EQ(CodesMadeIn([&] { Micro(); }), 2);
  }
  EXPECT_EQ(CodesMadeIn([&] { Micro(); }), 0);
}

TEST_P(KeptWeightCodesTest, AnEvaluationInInferenceModeLeavesNoneThatBackwardCouldNotSave) {
  KeptWeightCodes codes({weight_});
  codes.Open();
  {
    const c10::InferenceMode evaluation;
    Fp8Linear(x_, weight_, {}, {.enabled = true, .scaling = GetParam()});
  }
  ExpectBits(Micro(), Fresh());
}

TEST_P(KeptWeightCodesTest, OfSeveralThatKeepAWeightTheLastOneDoes) {
  auto first = std::make_unique<KeptWeightCodes>(std::vector{weight_});
  first->Open();
  Micro();
  KeptWeightCodes second({weight_});
  EXPECT_EQ(CodesMadeIn([&] { Micro(); }), 2) << "closed";
  second.Open();
  first.reset();
  Micro();
  EXPECT_EQ(CodesMadeIn([&] { Micro(); }), 0);
}

// Where what is captured reads codes of `weight`.
Fp8Matrix CapturedCodes(KeptWeightCodes& codes, const at::Tensor& weight, Scaling scaling) {
  const WithoutKeptCodes capture(&codes);
  return WeightsToFp8({weight}, scaling);
}

TEST_P(KeptWeightCodesTest, LastingOnesAreMadeAnewOnceAnOpeningWhereTheyLie) {
  KeptWeightCodes codes({weight_});
  codes.Open(KeptWeightCodes::Lifetime::kLasting);
  Micro();
  Fp8Matrix captured;
  EXPECT_EQ(CodesMadeIn([&] { captured = CapturedCodes(codes, weight_, GetParam()); }), 0);
  for (int step = 0; step < 3; ++step) {
    codes.Close();
    KeptWeightCodes::NoteWrites();
    weight_.mutable_data_ptr<at::BFloat16>()[step] = 7.0F + static_cast<float>(step);
    EXPECT_EQ(CodesMadeIn([&] { Micro(); }), 2) << "closed";
    codes.Open(KeptWeightCodes::Lifetime::kLasting);
    EXPECT_EQ(CodesMadeIn([&] { EXPECT_TRUE(codes.Refresh()); }), 1) << "both in one pass";
    const auto expected = Fresh();
    const auto micro_batches = [&] {
      EXPECT_TRUE(codes.Refresh());
      ExpectBits(Micro(), expected);
      const WithoutKeptCodes capture(&codes);
      ExpectBits(Micro(), expected);
    };
    EXPECT_EQ(CodesMadeIn(micro_batches), 0);
    const Fp8Matrix wanted = ToFp8(weight_.detach(), Fp8Format::kE4m3, GetParam());
    EXPECT_TRUE(captured.codes.view(at::kByte).equal(wanted.codes.view(at::kByte)));
    EXPECT_TRUE(captured.inverse.equal(wanted.inverse));
  }
  codes.Close();
  codes.Open();
  EXPECT_EQ(CodesMadeIn([&] { Micro(); }), 2) << "those that last are gone";
}

TEST_P(KeptWeightCodesTest, LastingOnesFollowWritesWithinAnOpening) {
  at::Tensor second = RandomLeaf({16, 64}, at::kBFloat16);
  KeptWeightCodes codes({weight_, second});
  codes.Open(KeptWeightCodes::Lifetime::kLasting);
  Micro();
  MicroBatch(x_, second, GetParam());
  const Fp8Matrix captured = CapturedCodes(codes, weight_, GetParam());
  const auto refresh = [&] { EXPECT_TRUE(codes.Refresh()); };
  EXPECT_EQ(CodesMadeIn(refresh), 0);
  {
    const at::NoGradGuard no_grad;
    weight_.mul_(-3).add_(0.1);
  }
  const at::Tensor before = captured.codes.view(at::kByte).clone();
  EXPECT_EQ(CodesMadeIn([&] { ExpectBits(Micro(), Fresh()); }), 4) << "before the refresh";
  EXPECT_TRUE(captured.codes.view(at::kByte).equal(before)) << "an operation leaves them alone";
  EXPECT_EQ(CodesMadeIn(refresh), 1) << "the other was not written to";
  EXPECT_EQ(CodesMadeIn([&] { ExpectBits(Micro(), Fresh()); }), 2);
  KeptWeightCodes::NoteWrites();
  EXPECT_EQ(CodesMadeIn(refresh), 2) << "another engine's update";
  codes.Close();
  EXPECT_EQ(CodesMadeIn(refresh), 2) << "closed: any of them may change unseen";
  EXPECT_EQ(CodesMadeIn(refresh), 2);
}

TEST_P(KeptWeightCodesTest, WhatACaptureFindsNoLastingCodesOfIsMadeByItself) {
  at::Tensor second = RandomLeaf({16, 64}, at::kBFloat16);
  KeptWeightCodes codes({weight_, second});
  KeptWeightCodes others({RandomLeaf({16, 64}, at::kBFloat16)});
  codes.Open(KeptWeightCodes::Lifetime::kLasting);
  Micro();
  const auto captured = [&](const at::Tensor& weight) {
    return CodesMadeIn([&] { CapturedCodes(codes, weight, GetParam()); });
  };
  EXPECT_EQ(captured(second), 1);
  EXPECT_EQ(captured(second), 1) << "and is not kept";
  EXPECT_EQ(CodesMadeIn([&] { CapturedCodes(others, weight_, GetParam()); }), 1)
      << "nobody would bring another's up to date";
  KeptWeightCodes::NoteWrites();
  EXPECT_EQ(captured(weight_), 1) << "not up to date";
  EXPECT_TRUE(codes.Refresh());
  EXPECT_EQ(captured(weight_), 0);
}

TEST_P(KeptWeightCodesTest, OfAWeightOfAnotherShapeWhatWasCapturedIsOfNoUse) {
  KeptWeightCodes codes({weight_});
  codes.Open(KeptWeightCodes::Lifetime::kLasting);
  Micro();
  weight_.set_data(at::randn({16, 64}).to(at::kBFloat16));
  EXPECT_TRUE(codes.Refresh()) << "nothing was captured";
  EXPECT_EQ(CodesMadeIn([&] { ExpectBits(Micro(), Fresh()); }), 4);
  CapturedCodes(codes, weight_, GetParam());
  weight_.set_data(at::randn({16, 64}).to(at::kBFloat16));
  EXPECT_TRUE(codes.Refresh()) << "in other memory";
  EXPECT_EQ(CodesMadeIn([&] { ExpectBits(Micro(), Fresh()); }), 2);
  weight_.set_data(at::randn({32, 64}).to(at::kBFloat16));
  EXPECT_FALSE(codes.Refresh());
  ExpectBits(Micro(), Fresh());
}

INSTANTIATE_TEST_SUITE_P(Scalings, KeptWeightCodesTest,
                         ::testing::Values(Scaling::kTensorwise, Scaling::kRowwise),
                         [](const auto& scaling) {
                           return scaling.param == Scaling::kRowwise ? "Rowwise" : "Tensorwise";
                         });

}  // namespace
}  // namespace dtrain::ops::fp8_ops_test
