#include "base/numeric/dtype.h"

#include <array>

namespace dtrain {
namespace {
constexpr std::array<absl::string_view, 8> kNames = {"fp32",  "bf16",  "fp16",  "fp64",
                                                     "int32", "int64", "uint8", "bool"};
}  // namespace

absl::string_view DTypeName(DType dtype) { return kNames.at(static_cast<size_t>(dtype)); }

}  // namespace dtrain
