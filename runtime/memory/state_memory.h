// Memory for what a rank keeps of each element that it updates.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "runtime/device/device.h"

namespace dtrain {

// [elements] of fp32 or bf16, all `value`. Zeros come as pages that take no memory until something
// is written to them. ResourceExhausted names the size.
absl::StatusOr<at::Tensor> MakeState(int64_t elements, at::ScalarType type, float value);
// The same where a rank trains: on a GPU it is LibTorch's memory there.
absl::StatusOr<at::Tensor> MakeStateOn(const Device& device, int64_t elements, at::ScalarType type,
                                       float value);
// The same in pinned memory of the host, for what is updated there though the rank trains on a GPU.
absl::StatusOr<at::Tensor> MakePinnedState(const Device& device, int64_t elements,
                                           at::ScalarType type, float value);

}  // namespace dtrain
