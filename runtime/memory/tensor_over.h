// Tensors over memory that something else owns.
#pragma once

#include <cstdint>
#include <memory>

#include "ATen/Functions.h"
#include "ATen/core/Tensor.h"

namespace dtrain {

// [elements] of `type` over owner->data(), which the tensor's storage keeps alive. `device`: where
// that memory is.
template <class Owner>
at::Tensor TensorOver(const std::shared_ptr<Owner>& owner, int64_t elements, at::ScalarType type,
                      at::Device device = at::kCPU) {
  return at::from_blob(
      owner->data(), {elements}, [owner](void*) {}, at::TensorOptions(type).device(device), device);
}

}  // namespace dtrain
