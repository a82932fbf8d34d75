// LibTorch's element types and ours.
#pragma once

#include "absl/status/statusor.h"
#include "base/numeric/dtype.h"
#include "c10/core/ScalarType.h"

namespace dtrain {

// Unimplemented: a type that no collective and no checkpoint knows (complex numbers, quantised).
absl::StatusOr<DType> DTypeOf(at::ScalarType type);

// REQUIRES: fp32, bf16 or fp16.
at::ScalarType FloatTypeOf(DType dtype);

}  // namespace dtrain
