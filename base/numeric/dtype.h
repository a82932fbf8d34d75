// Element types shared by several rooms (comm buffers, checkpoint tensors, layout entries). Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace dtrain {

enum class DType : uint8_t {
  kFloat32,
  kBFloat16,
  kFloat16,
  kFloat64,
  kInt32,
  kInt64,
  kUInt8,
  kBool
};

// Bytes of one element.
constexpr size_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
    case DType::kUInt8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

// "fp32", "bf16", "fp16", "fp64", "int32", "int64", "uint8", "bool": names in messages and configs.
absl::string_view DTypeName(DType dtype);

}  // namespace dtrain
