#include "checkpoint/tools/tensor_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/numeric/element.h"
#include "checkpoint/format/safetensors_header.h"

namespace dtrain::checkpoint {
namespace {

double Distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) {
    return 0;
  }
  const double distance = std::abs(a - b);
  return std::isfinite(distance) ? distance : std::numeric_limits<double>::infinity();
}

// Converts elements of type From to To, and gives the number of finite ones that became infinite.
template <class From, class To>
uint64_t ConvertAll(absl::Span<const std::byte> in, std::byte* out) {
  uint64_t too_large = 0;
  for (size_t i = 0; i < in.size() / sizeof(From); ++i) {
    const double value = ToDouble(ElementAt<From>(in.data() + i * sizeof(From)));
    const auto rounded = FromDouble<To>(value);
    std::memcpy(out + i * sizeof(To), &rounded, sizeof(To));
    too_large += std::isfinite(value) && !std::isfinite(ToDouble(rounded)) ? 1 : 0;
  }
  return too_large;
}

}  // namespace

bool IsFloat(absl::string_view dtype) {
  return dtype == "F64" || dtype == "F32" || dtype == "BF16" || dtype == "F16";
}

std::optional<size_t> ElementBytes(absl::string_view dtype) {
  const std::optional<int> bits = SafetensorsBits(dtype);
  return bits.has_value() && *bits % 8 == 0 ? std::optional(static_cast<size_t>(*bits) / 8)
                                            : std::nullopt;
}

uint64_t ElementCount(absl::Span<const uint64_t> shape) {
  uint64_t elements = 1;
  for (const uint64_t size : shape) {
    elements *= size;
  }
  return elements;
}

void AddDifference(absl::string_view dtype_a, absl::Span<const std::byte> a,
                   absl::string_view dtype_b, absl::Span<const std::byte> b, double tolerance,
                   ValueDifference& difference) {
  const bool same_type = dtype_a == dtype_b;
  if (same_type && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0)) {
    return;
  }
  const size_t width_a = *ElementBytes(dtype_a);
  const size_t width_b = *ElementBytes(dtype_b);
  const std::optional<DType> type_a = DTypeFromSafetensors(dtype_a);
  const std::optional<DType> type_b = DTypeFromSafetensors(dtype_b);
  const bool is_float = IsFloat(dtype_a);
  for (size_t i = 0; i < a.size() / width_a; ++i) {
    const std::byte* const x = a.data() + i * width_a;
    const std::byte* const y = b.data() + i * width_b;
    if (same_type && std::memcmp(x, y, width_a) == 0) {
      continue;
    }
    // How far two differ is computed by numbers, in which large integers are rounded. Values of a
    // type that dtrain does not compute with differ by an unknown amount.
    const double distance = type_a && type_b ? Distance(NumberAt(*type_a, x), NumberAt(*type_b, y))
                                             : std::numeric_limits<double>::infinity();
    difference.largest = std::max(difference.largest, distance);
    const bool is_within =
        (is_float && tolerance > 0) || !same_type ? distance <= tolerance : false;
    difference.elements += is_within ? 0 : 1;
  }
}

uint64_t ConvertFloats(absl::string_view from, absl::Span<const std::byte> in, DType to,
                       absl::Span<std::byte> out) {
  uint64_t too_large = 0;
  WithElementType(*DTypeFromSafetensors(from), [&](auto type) {
    using From = decltype(type);
    too_large = to == DType::kFloat32    ? ConvertAll<From, float>(in, out.data())
                : to == DType::kBFloat16 ? ConvertAll<From, BFloat16>(in, out.data())
                                         : ConvertAll<From, Float16>(in, out.data());
  });
  return too_large;
}

}  // namespace dtrain::checkpoint
