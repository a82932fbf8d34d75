// Helpers for tests of fused operations: distances, and gradients of one function beside another's.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "ATen/ATen.h"
#include "torch/csrc/autograd/autograd.h"

namespace dtrain::ops::testing {

using Tensors = std::vector<at::Tensor>;
using Operation = std::function<Tensors(const Tensors&)>;

// The largest difference, relative to magnitudes above 1.
inline double Distance(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) {
    return 0;
  }
  const at::Tensor wide = b.to(at::kDouble);
  return ((a.to(at::kDouble) - wide).abs() / (1 + wide.abs())).max().item<double>();
}

// A leaf of `type` with random normal values.
inline at::Tensor RandomLeaf(at::IntArrayRef sizes, at::ScalarType type, double scale = 1) {
  return (at::randn(sizes, at::kDouble) * scale).to(type).requires_grad_();
}

// Runs `fused` on the leaves and `reference` on fp64 copies of them, and compares results and, for
// random gradients of every result, the gradients of every leaf. `tolerance` is relative to
// magnitudes above 1; gradients are sums of many terms and get four times as much.
inline void ExpectSame(const Operation& fused, const Operation& reference, const Tensors& leaves,
                       double tolerance) {
  Tensors wide;
  for (const at::Tensor& leaf : leaves) {
    wide.push_back(leaf.detach().to(at::kDouble).requires_grad_(leaf.requires_grad()));
  }
  const Tensors results = fused(leaves);
  const Tensors expected = reference(wide);
  ASSERT_EQ(results.size(), expected.size());
  Tensors seeds;
  Tensors wide_seeds;
  for (size_t i = 0; i < results.size(); ++i) {
    ASSERT_EQ(results[i].sizes(), expected[i].sizes()) << "result " << i;
    ASSERT_EQ(results[i].scalar_type(), leaves[0].scalar_type()) << "result " << i;
    EXPECT_LT(Distance(results[i], expected[i]), tolerance) << "result " << i;
    seeds.push_back(at::randn_like(results[i]));
    wide_seeds.push_back(seeds.back().to(at::kDouble));
  }
  const Tensors gradients = torch::autograd::grad(results, leaves, seeds);
  const Tensors wanted = torch::autograd::grad(expected, wide, wide_seeds);
  for (size_t i = 0; i < leaves.size(); ++i) {
    ASSERT_EQ(gradients[i].sizes(), leaves[i].sizes()) << "gradient " << i;
    EXPECT_LT(Distance(gradients[i], wanted[i]), 4 * tolerance) << "gradient " << i;
  }
}

}  // namespace dtrain::ops::testing
