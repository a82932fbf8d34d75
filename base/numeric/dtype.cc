#include "base/numeric/dtype.h"

#include <array>

namespace dtrain {
namespace {
constexpr std::array<absl::string_view, 8> kNames = {"fp32",  "bf16",  "fp16",  "fp64",
                                                     "int32", "int64", "uint8", "bool"};
}  // namespace

absl::string_view DTypeName(DType dtype) { return kNames.at(static_cast<size_t>(dtype)); }

std::optional<DType> DTypeFromName(absl::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames.at(i) == name) {
      return static_cast<DType>(i);
    }
  }
  return std::nullopt;
}

}  // namespace dtrain
