// Orthogonalisation of a matrix, Muon's core.
#pragma once

#include "ATen/core/Tensor.h"

namespace dtrain {

// Five Newton-Schulz steps with Muon's quintic (Jordan 2024), on the host in fp32, on a GPU in bf16
// as the papers' own, on `update`, fp32 [rows, columns]
// or a batch of those, or [n, ...] of a convolution, taken as [n, rest]: the same shape, with
// singular values between about 0.7 and 1.2, times DeepSpeed's factor sqrt(max(1, rows / columns)).
at::Tensor NewtonSchulz(const at::Tensor& update);

}  // namespace dtrain
