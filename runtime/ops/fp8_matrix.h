// Matrices in 8-bit floating point with their scales, and their products. Private to runtime/ops.
#pragma once

#include "ATen/core/Tensor.h"
#include "dtrain/fp8.h"
#include "kernels/quantize/fp8.h"
#include "runtime/ops/gradient_home.h"

namespace dtrain::ops {

struct Fp8Matrix {
  at::Tensor codes;       // [rows, columns], at::kFloat8_e4m3fn or at::kFloat8_e5m2.
  at::Tensor inverse;     // fp32: codes times this is the matrix. [] tensorwise, [rows, 1] rowwise.
  at::Tensor scale = {};  // Tensorwise: fp32 [], what the numbers were multiplied by.
};

// x [rows, columns], contiguous, fp32 or bf16. A scale is kernels::Fp8Scale of its numbers; where
// they hold a NaN or an infinity, all that share the scale are NaN.
Fp8Matrix ToFp8(const at::Tensor& x, kernels::Fp8Format format, Fp8Options::Scaling scaling);

// Tensorwise: x, and its transpose of the same codes, in one pass behind that for the scale.
struct Fp8Both {
  Fp8Matrix as_is, transposed;
};
Fp8Both BothToFp8(const at::Tensor& x, kernels::Fp8Format format);
// Other numbers into the memory of `both`, by its scaling, in one pass as above; `both.transposed`
// may be undefined. REQUIRES: both.as_is has x's sizes and `format`.
void ToFp8Again(const at::Tensor& x, kernels::Fp8Format format, const Fp8Both& both);
// The transpose of x in FP8: by the scale of `known`, which x in FP8 has tensorwise; rowwise, whose
// `known` is empty, by scales of its own rows.
Fp8Matrix TransposedToFp8(const at::Tensor& x, kernels::Fp8Format format, const Fp8Matrix& known);

// a b^T of a [m, k] and b [n, k], summed in fp32, as `type` [m, n]. `exact`: each sum in full fp32
// precision, as gradients want; else as fast as the device can. REQUIRES: m, n, k are multiples of
// 16; both are of one scaling, at most one is e5m2.
at::Tensor Fp8Product(const Fp8Matrix& a, const Fp8Matrix& b, at::ScalarType type, bool exact);

// home.place (+)= a b^T, exactly: without a copy between on a GPU, tensorwise.
void Fp8ProductHome(const GradientHome& home, const Fp8Matrix& a, const Fp8Matrix& b);

}  // namespace dtrain::ops
