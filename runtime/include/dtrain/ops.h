// Fused operations with autograd, for models that want them. Inputs the kernels do not cover
// (types, devices, layouts) fall back to ATen with the same result.
//
// Thread-safe. fp32 and bf16, contiguous CPU tensors take the fused path.
#pragma once

#include "ATen/core/Tensor.h"

namespace dtrain::ops {

// y = x / sqrt(mean(x^2, last dim) + eps) * weight. x [..., hidden], weight [hidden] -> [...,
// hidden]. (Zhang & Sennrich 2019.)
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

// silu(gate) * up, element by element; both the same shape. (Shazeer 2020.)
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace dtrain::ops
