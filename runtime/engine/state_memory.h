// Memory for what a rank keeps of each element that it updates.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"

namespace dtrain {

// [elements] of fp32 or bf16, all `value`. Zeros come as pages that take no memory until something
// is written to them. ResourceExhausted names the size.
absl::StatusOr<at::Tensor> MakeState(int64_t elements, at::ScalarType type, float value);

}  // namespace dtrain
