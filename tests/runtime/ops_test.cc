// Fused operations against ATen's composites: values and gradients.
#include "dtrain/ops.h"

#include <gtest/gtest.h>

#include "ATen/ATen.h"
#include "torch/csrc/autograd/autograd.h"

namespace dtrain::ops {
namespace {

double Distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs() / (1 + b.abs())).max().item<double>();
}

TEST(OpsTest, RmsNormEqualsAtenForwardAndBackward) {
  at::manual_seed(1);
  for (const int64_t hidden : {1, 7, 64, 257}) {
    const at::Tensor x = at::randn({3, 5, hidden}).requires_grad_();
    const at::Tensor weight = at::randn({hidden}).requires_grad_();
    const at::Tensor dy = at::randn({3, 5, hidden});
    const at::Tensor ours = RmsNorm(x, weight, 1e-6);
    const at::Tensor theirs = at::rms_norm(x, {hidden}, weight, 1e-6);
    EXPECT_LT(Distance(ours, theirs), 1e-5);
    const auto g1 = torch::autograd::grad({ours}, {x, weight}, {dy});
    const auto g2 = torch::autograd::grad({theirs}, {x, weight}, {dy});
    EXPECT_LT(Distance(g1[0], g2[0]), 2e-5) << hidden;
    EXPECT_LT(Distance(g1[1], g2[1]), 2e-5) << hidden;
  }
}

TEST(OpsTest, SwiGluEqualsAtenForwardAndBackward) {
  at::manual_seed(2);
  for (const int64_t width : {1, 9, 512}) {
    const at::Tensor gate = (at::randn({4, width}) * 4).requires_grad_();
    const at::Tensor up = at::randn({4, width}).requires_grad_();
    const at::Tensor dy = at::randn({4, width});
    const at::Tensor ours = SwiGlu(gate, up);
    const at::Tensor theirs = at::silu(gate) * up;
    EXPECT_LT(Distance(ours, theirs), 1e-5);
    const auto g1 = torch::autograd::grad({ours}, {gate, up}, {dy});
    const auto g2 = torch::autograd::grad({theirs}, {gate, up}, {dy});
    EXPECT_LT(Distance(g1[0], g2[0]), 1e-5);
    EXPECT_LT(Distance(g1[1], g2[1]), 1e-5);
  }
}

TEST(OpsTest, WhatTheKernelsDoNotCoverFallsBackToAten) {
  const at::Tensor x = at::randn({4, 6}, at::kDouble).requires_grad_();
  const at::Tensor weight = at::randn({6}, at::kDouble);
  EXPECT_LT(Distance(RmsNorm(x, weight, 1e-6), at::rms_norm(x, {6}, weight, 1e-6)), 1e-12);
  const at::Tensor strided = at::randn({6, 4}).t();
  EXPECT_LT(Distance(SwiGlu(strided, strided), at::silu(strided) * strided), 1e-6);
}

TEST(OpsTest, AGradientThatIsNotContiguousIsTaken) {
  const at::Tensor x = at::randn({4, 6}).requires_grad_();
  const at::Tensor weight = at::ones({6});
  RmsNorm(x, weight, 1e-6).sum().backward();  // sum's gradient is an expanded scalar.
  EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
}

}  // namespace
}  // namespace dtrain::ops
