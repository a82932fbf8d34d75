// CrossEntropy and LinearCrossEntropy against ATen's composites, finite differences, and the
// allocator's own account of their memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ATen/ATen.h"
#include "c10/util/ThreadLocalDebugInfo.h"
#include "dtrain/ops.h"
#include "dtrain/recompute.h"
#include "tests/runtime/testing/tensor_bytes.h"
#include "torch/csrc/autograd/autograd.h"

namespace dtrain::ops::cross_entropy_ops_test {
namespace {

using ::testing::HasSubstr;

double Distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs() / (1 + b.abs())).max().item<double>();
}

struct Problem {
  Problem(int64_t tokens, int64_t width, int64_t vocab, at::ScalarType dtype) {
    at::manual_seed(3);
    hidden = at::randn({tokens, width}, at::kDouble).to(dtype).requires_grad_();
    weight = (at::randn({vocab, width}, at::kDouble) / std::sqrt(static_cast<double>(width)) * 3)
                 .to(dtype)
                 .requires_grad_();
    targets = at::randint(vocab, {tokens}, at::kLong);
    targets.slice(0, 1, tokens, 4).fill_(-100);
  }
  at::Tensor hidden, weight, targets;
};

// The formula by ATen, in fp64, with the gradients of hidden and weight.
struct Reference {
  explicit Reference(const Problem& p, const CrossEntropyOptions& options) {
    const at::Tensor h = p.hidden.detach().to(at::kDouble).requires_grad_();
    const at::Tensor w = p.weight.detach().to(at::kDouble).requires_grad_();
    const at::Tensor logits = h.matmul(w.t());
    const at::Tensor kept = p.targets.ne(options.ignore_index).to(at::kDouble);
    loss = at::cross_entropy_loss(logits, p.targets, {}, at::Reduction::Sum, options.ignore_index,
                                  options.label_smoothing) +
           (logits.logsumexp(1).square() * kept).sum() * options.z_loss;
    const auto gradients = torch::autograd::grad({loss}, {h, w}, {}, false);
    dhidden = gradients[0];
    dweight = gradients[1];
  }
  at::Tensor loss, dhidden, dweight;
};

const CrossEntropyOptions kEverything = {.z_loss = 1e-2, .label_smoothing = 0.1};

TEST(LinearCrossEntropyTest, EqualsAtensCompositeForEveryTypeAndChunk) {
  // bf16: logits and their gradient are rounded to 8 bits once each, and so is each result.
  const std::vector<std::pair<at::ScalarType, double>> types = {
      {at::kDouble, 1e-12}, {at::kFloat, 2e-5}, {at::kBFloat16, 3e-2}};
  for (const auto& [dtype, tolerance] : types) {
    const Problem p(37, 24, 101, dtype);
    for (const CrossEntropyOptions& options : {CrossEntropyOptions{}, kEverything}) {
      const Reference expected(p, options);
      for (const int64_t chunk : {0, 1, 5, 36, 37, 1000}) {
        const Loss loss = LinearCrossEntropy(p.hidden, p.weight, p.targets, options, chunk);
        EXPECT_EQ(loss.count, p.targets.ne(-100).sum().item<int64_t>());
        EXPECT_LT(Distance(loss.sum, expected.loss), tolerance) << dtype << " chunk " << chunk;
        const auto gradients = torch::autograd::grad({loss.sum}, {p.hidden, p.weight}, {}, false);
        EXPECT_EQ(gradients[1].scalar_type(), dtype);
        EXPECT_LT(Distance(gradients[0], expected.dhidden), tolerance) << dtype << ' ' << chunk;
        EXPECT_LT(Distance(gradients[1], expected.dweight), 3 * tolerance) << dtype << ' ' << chunk;
      }
    }
  }
}

TEST(LinearCrossEntropyTest, PassesTheUpstreamGradientOnAndRepeatsItsBits) {
  const Problem p(20, 16, 50, at::kFloat);
  const auto run = [&] {
    const Loss loss = LinearCrossEntropy(p.hidden, p.weight, p.targets, {}, 7);
    return torch::autograd::grad({loss.sum * 0.25}, {p.hidden, p.weight}, {}, false);
  };
  const auto first = run();
  const auto second = run();
  const Reference expected(p, {});
  EXPECT_LT(Distance(first[0], expected.dhidden * 0.25), 1e-5);
  EXPECT_LT(Distance(first[1], expected.dweight * 0.25), 1e-5);
  EXPECT_TRUE(first[0].equal(second[0]) && first[1].equal(second[1]));
}

TEST(LinearCrossEntropyTest, AGraphThatIsKeptMayBeUsedTwice) {
  const Problem p(20, 16, 50, at::kFloat);
  const at::Tensor loss = LinearCrossEntropy(p.hidden, p.weight, p.targets).sum;
  const at::Tensor three = at::full({}, 3.0);
  const auto first = torch::autograd::grad({loss}, {p.hidden, p.weight}, {three}, true);
  const auto second = torch::autograd::grad({loss}, {p.hidden, p.weight}, {three}, false);
  EXPECT_TRUE(first[0].equal(second[0]) && first[1].equal(second[1]));
}

TEST(LinearCrossEntropyTest, GivesOnlyTheGradientsThatAreWanted) {
  Problem p(9, 8, 20, at::kFloat);
  const Reference expected(p, {});
  const at::Tensor frozen = p.weight.detach();
  LinearCrossEntropy(p.hidden, frozen, p.targets).sum.backward();
  EXPECT_LT(Distance(p.hidden.grad(), expected.dhidden), 1e-5);
  LinearCrossEntropy(p.hidden.detach(), p.weight, p.targets).sum.backward();
  EXPECT_LT(Distance(p.weight.grad(), expected.dweight), 1e-5);
  const at::NoGradGuard no_grad;
  const Loss evaluated = LinearCrossEntropy(p.hidden, p.weight, p.targets);
  EXPECT_FALSE(evaluated.sum.requires_grad());
  EXPECT_LT(Distance(evaluated.sum, expected.loss), 1e-5);
}

TEST(LinearCrossEntropyTest, TakesBatchesOfSequencesAndASegmentThatIsRecomputed) {
  const Problem p(24, 8, 20, at::kFloat);
  const Reference expected(p, {});
  const at::Tensor batch = p.hidden.detach().view({2, 12, 8}).requires_grad_();
  const at::Tensor loss = Recompute(
      [&](const at::Tensor& h) {
        return LinearCrossEntropy(h, p.weight, p.targets.view({2, 12}), {}, 5).sum;
      },
      batch);
  loss.backward();
  EXPECT_LT(Distance(batch.grad().view({24, 8}), expected.dhidden), 1e-5);
  EXPECT_LT(Distance(p.weight.grad(), expected.dweight), 1e-5);
}

TEST(LinearCrossEntropyTest, NothingButIgnoredTargetsGivesZeros) {
  Problem p(6, 8, 20, at::kFloat);
  p.targets.fill_(-100);
  const Loss loss = LinearCrossEntropy(p.hidden, p.weight, p.targets);
  loss.sum.backward();
  EXPECT_EQ(loss.count, 0);
  EXPECT_EQ(loss.sum.item<double>(), 0);
  EXPECT_EQ(p.hidden.grad().abs().sum().item<double>(), 0);
  EXPECT_EQ(p.weight.grad().abs().sum().item<double>(), 0);
}

template <class Function>
std::string WhatItThrows(Function function) {
  try {
    function();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing";
}

TEST(LinearCrossEntropyTest, SaysWhatIsWrongWithItsInput) {
  const Problem p(6, 8, 20, at::kFloat);
  at::Tensor targets = p.targets.clone();
  targets[4] = 20;
  EXPECT_THAT(WhatItThrows([&] { LinearCrossEntropy(p.hidden, p.weight, targets); }),
              HasSubstr("target 20 at position 4 is outside [0, 20)"));
  EXPECT_THAT(WhatItThrows([&] { LinearCrossEntropy(p.hidden, p.weight, p.targets.slice(0, 1)); }),
              HasSubstr("must be Long of shape [6]"));
  EXPECT_THAT(WhatItThrows([&] { LinearCrossEntropy(p.hidden, p.weight.t(), p.targets); }),
              HasSubstr("[vocab, width] of one floating-point type"));
  EXPECT_THAT(WhatItThrows([&] {
                LinearCrossEntropy(p.hidden, p.weight, p.targets, {.label_smoothing = 1.5});
              }),
              HasSubstr("label_smoothing is 1.5; it must be in [0, 1]"));
}

TEST(CrossEntropyTest, EqualsAtensCompositeAndKeepsTheLogits) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const double tolerance = dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : 1e-2;
    at::manual_seed(4);
    const at::Tensor logits = (at::randn({3, 7, 61}) * 4).to(dtype).requires_grad_();
    const at::Tensor before = logits.detach().clone();
    const at::Tensor targets = at::randint(61, {3, 7}, at::kLong);
    targets[1][2] = -100;
    const Loss loss = CrossEntropy(logits, targets, {.label_smoothing = 0.2});
    const at::Tensor wide = before.to(at::kDouble).requires_grad_();
    const at::Tensor expected = at::cross_entropy_loss(wide.view({21, 61}), targets.view({21}), {},
                                                       at::Reduction::Sum, -100, 0.2);
    EXPECT_EQ(loss.count, 20);
    EXPECT_LT(Distance(loss.sum, expected), tolerance);
    (loss.sum * 0.5).backward();
    (expected * 0.5).backward();
    EXPECT_LT(Distance(logits.grad(), wide.grad()), tolerance);
    EXPECT_TRUE(logits.detach().equal(before));
  }
}

// Gradients against central differences in fp64, as gradcheck.
TEST(CrossEntropyTest, GradientsAreTheFiniteDifferences) {
  Problem p(5, 4, 9, at::kDouble);
  const auto loss_of = [&] {
    return LinearCrossEntropy(p.hidden, p.weight, p.targets, kEverything, 2).sum;
  };
  const auto gradients = torch::autograd::grad({loss_of()}, {p.hidden, p.weight}, {}, false);
  const at::NoGradGuard no_grad;
  constexpr double kStep = 1e-5;
  for (const int which : {0, 1}) {
    at::Tensor flat = (which == 0 ? p.hidden : p.weight).view({-1});
    for (int64_t i = 0; i < flat.numel(); ++i) {
      flat[i] += kStep;
      const double above = loss_of().item<double>();
      flat[i] -= 2 * kStep;
      const double below = loss_of().item<double>();
      flat[i] += kStep;
      EXPECT_NEAR(gradients[static_cast<size_t>(which)].view({-1})[i].item<double>(),
                  (above - below) / (2 * kStep), 1e-7);
    }
  }
}

// The peak of forward and backward beyond the two gradients.
int64_t PeakBeyondGradients(int64_t tokens, int64_t vocab) {
  constexpr int64_t kWidth = 16;
  const Problem p(tokens, kWidth, vocab, at::kFloat);
  const auto bytes = std::make_shared<testing::TensorBytes>();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
    LinearCrossEntropy(p.hidden, p.weight, p.targets).sum.backward();
  }
  EXPECT_TRUE(p.weight.grad().defined());
  return bytes->peak() - (tokens + vocab) * kWidth * 4;
}

TEST(LinearCrossEntropyTest, PeakMemoryDependsOnNeitherTokensNorVocabulary) {
  constexpr int64_t kChunkBytes = int64_t{64} << 20;  // 16 Mi logits in fp32.
  const int64_t few = PeakBeyondGradients(2'000, 20'000);
  EXPECT_GT(few, kChunkBytes / 2);  // The account sees the chunk's logits.
  for (const auto& [tokens, vocab] :
       {std::pair<int64_t, int64_t>{2'000, 20'000}, {8'000, 20'000}, {2'000, 80'000}}) {
    const int64_t logits = tokens * vocab * 4;
    const int64_t peak = PeakBeyondGradients(tokens, vocab);
    EXPECT_LT(peak, kChunkBytes + (1 << 20)) << tokens << " tokens, " << vocab << " words";
    EXPECT_LT(peak, logits / 2);
  }
}

}  // namespace
}  // namespace dtrain::ops::cross_entropy_ops_test
