// Helpers that the bindings of the norms share.
#pragma once

#include "ATen/Functions.h"
#include "runtime/ops/fused.h"

namespace dtrain::ops {

// Whether `other` is what the kernels take beside x: dense, of x's type, shape and device.
inline bool SameKind(const at::Tensor& x, const at::Tensor& other) {
  return Fusable(other) && other.scalar_type() == x.scalar_type() && other.sizes() == x.sizes() &&
         other.device() == x.device();
}

// Whether the norms' kernels take x [..., hidden] with weight [hidden].
inline bool NormFusable(const at::Tensor& x, const at::Tensor& weight) {
  return Fusable(x) && Fusable(weight) && x.scalar_type() == weight.scalar_type() &&
         x.device() == weight.device() && weight.dim() == 1 && x.dim() > 0 &&
         x.size(-1) == weight.size(0) && x.numel() > 0;
}

// A gradient as the kernels read it. Undefined is zero: nothing used that result.
inline at::Tensor DenseGradient(const at::Tensor& gradient, const at::Tensor& like) {
  return gradient.defined() ? gradient.contiguous() : at::zeros_like(like);
}

}  // namespace dtrain::ops
