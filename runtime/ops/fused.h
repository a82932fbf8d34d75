// Helpers that the autograd bindings of kernels share.
#pragma once

#include <array>
#include <optional>
#include <type_traits>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "ATen/record_function.h"
#include "base/numeric/float16.h"
#include "runtime/ops/device_kernels.h"

namespace dtrain::ops {

// Whether the kernels take `tensor` as it is.
inline bool Fusable(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_contiguous() &&
         (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16) &&
         HasKernels(tensor.device());
}

// For RECORD_FUNCTION, by which a fused operation says what it reads, as LibTorch's own do:
// profilers show it, and weights that ZeRO stage 3 shares out are there before it runs.
template <class... Tensors>
std::array<const c10::IValue, sizeof...(Tensors)> Inputs(const Tensors&... tensors) {
  return {tensors...};
}

// How an operand that may be undefined goes through an autograd function.
using MaybeTensor = std::optional<at::Tensor>;
inline MaybeTensor Maybe(const at::Tensor& tensor) {
  return tensor.defined() ? MaybeTensor(tensor) : std::nullopt;
}
inline at::Tensor Given(const MaybeTensor& tensor) { return tensor.value_or(at::Tensor()); }

// LibTorch's and dtrain's bf16 have the same 16 bits.
template <class T>
const T* Data(const at::Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}
template <class T>
T* MutableData(at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

}  // namespace dtrain::ops
