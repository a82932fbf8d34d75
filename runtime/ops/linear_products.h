// The products of linear layers and where they put the gradients of weights. Private to
// runtime/ops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "runtime/ops/gradient_home.h"

namespace torch::autograd {
struct AutogradContext;
}

namespace dtrain::ops {

// The inputs of an operation as RECORD_FUNCTION takes them, which asks for them when it records.
std::vector<c10::IValue> AllOf(const at::Tensor& first, at::TensorList more,
                               at::TensorList and_more = {});

// c10::ValueError, which begins with `what`, unless x is [..., in], weights are [out_i, in], one at
// least, and biases are none or [out_i] each.
void CheckLinear(const char* what, const at::Tensor& x, at::TensorList weights,
                 at::TensorList biases);

int64_t Rows(at::TensorList weights);  // The sum over all weights.

// The weights [out_i, in] as one [sum of out, in] where they lie one after the other in one
// storage, as neighbours of an engine's flat parameters do; else undefined.
at::Tensor InOne(at::TensorList weights);
// Homes as one, where they are neighbours and all of them hold something or none does; else without
// a place.
GradientHome InOne(const std::vector<GradientHome>& homes);

// out = a b (+ bias). By DeviceMatmul where it takes it, else ATen's.
void Multiply(at::Tensor out, const at::Tensor& a, const at::Tensor& b,
              const at::Tensor& bias = {});
at::Tensor Multiply(const at::Tensor& a, const at::Tensor& b);

// The home of the gradient of a weight, fp32 or bf16; without a place where it has none. An
// operation on the host fills a home, one on a GPU adds to it too. `fp32_sums`: the operation sums
// in fp32, whatever the weight's type; otherwise a home of a bf16 weight needs cublasLt.
GradientHome TakeWeightHome(const at::Tensor& weight, bool fp32_sums = false);
// For each of an operation's weights, its inputs from 1 on: whether it wants a gradient.
std::vector<bool> WeightsWanted(const torch::autograd::AutogradContext& context, size_t weights);
// The homes of the weights that want a gradient; the others get none.
std::vector<GradientHome> TakeWeightHomes(at::TensorList weights, const std::vector<bool>& wanted,
                                          bool fp32_sums = false);

// home.place (+)= a b: a product that adds, where there is one, so that a gradient of bf16 factors
// is summed in fp32 without having been rounded.
void MultiplyHome(const GradientHome& home, const at::Tensor& a, const at::Tensor& b);

// The gradient rows^T dy of a weight [in, out], of y = rows weight; undefined: it went home.
at::Tensor GradientOfTransposed(const at::Tensor& weight, const at::Tensor& rows,
                                const at::Tensor& dy);

// home.place (+)= gradient.
void PutHome(const GradientHome& home, const at::Tensor& gradient);

}  // namespace dtrain::ops
