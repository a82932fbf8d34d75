#include "runtime/model/dtypes.h"

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace dtrain {

absl::StatusOr<DType> DTypeOf(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kHalf:
      return DType::kFloat16;
    case at::kDouble:
      return DType::kFloat64;
    case at::kInt:
      return DType::kInt32;
    case at::kLong:
      return DType::kInt64;
    case at::kByte:
      return DType::kUInt8;
    case at::kBool:
      return DType::kBool;
    default:
      return absl::UnimplementedError(
          absl::StrFormat("no element type for %s", c10::toString(type)));
  }
}

at::ScalarType FloatTypeOf(DType dtype) {
  DT_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16);
  return dtype == DType::kFloat32    ? at::kFloat
         : dtype == DType::kBFloat16 ? at::kBFloat16
                                     : at::kHalf;
}

}  // namespace dtrain
