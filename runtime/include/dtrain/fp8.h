// Linear layers whose products are of 8-bit floating point: factors are scaled, rounded to e4m3 or
// e5m2 and multiplied; sums and results have more bits.
//
// Thread-safe. On a GPU the products are at::_scaled_mm's (cublasLt, on FP8 units); on a CPU they
// are emulated: the same codes and scales, decoded and multiplied in fp32, which costs more than
// bf16 and is for looking at numerics.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace dtrain {

class Config;

// Whether and how products of linear layers are computed in 8 bits.
struct Fp8Options {
  // How many numbers share a scale: the whole matrix, or what is summed up for one row or column of
  // the result (more accurate beside outliers, and slower).
  enum class Scaling : int8_t { kTensorwise, kRowwise };
  // The format of gradients; weights and activations are e4m3 (3 bits of mantissa, up to 448).
  enum class Gradients : int8_t { kE5m2, kE4m3 };
  bool enabled = false;                    // False: the products of MergedLinear.
  Scaling scaling = Scaling::kTensorwise;  // How many numbers share a scale.
  Gradients gradients = Gradients::kE5m2;  // The format of gradients.
};

// The section "fp8" of a configuration.
Fp8Options Fp8OptionsOf(const Config& config);

namespace ops {

// x weight^T + bias with products in FP8, forward and backward: x [..., in], weight [out, in], bias
// [out] or undefined; fp32 or bf16 in, the same type out. Scales are those of the numbers at hand
// (the largest magnitude becomes the format's largest). The product is that of MergedLinear where
// `options` are off or a dimension is no multiple of 16: out, in, or the rows of x. No second
// derivative.
//
// Micro-batches of a step of an engine that accumulates gradients and keeps weights whole share the
// codes of `weight`: between them it may change by operations of LibTorch and by updates of other
// engines, which are noticed, not by other means (`.data`, a raw pointer).
at::Tensor Fp8Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     const Fp8Options& options);

// Several of one input side by side, as MergedLinear: weights [out_i, in], biases none or one each,
// the result [..., sum of out_i]. x is rounded once, and the weights, which share a scale where
// scaling is tensorwise, are one factor of each product.
at::Tensor MergedFp8Linear(const at::Tensor& x, at::TensorList weights, at::TensorList biases,
                           const Fp8Options& options);

}  // namespace ops
}  // namespace dtrain
