// Compares and converts the values of tensors, a block of elements at a time. Types are named as in
// safetensors. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/numeric/dtype.h"

namespace dtrain::checkpoint {

// F64, F32, BF16 or F16.
bool IsFloat(absl::string_view dtype);

// Bytes of one element; no value for types whose elements are no whole bytes and for unknown ones.
std::optional<size_t> ElementBytes(absl::string_view dtype);

// The number of elements of a shape; it fits, because the tensor's bytes do.
uint64_t ElementCount(absl::Span<const uint64_t> shape);

// How the elements of two tensors differ.
struct ValueDifference {
  uint64_t elements = 0;  // Number of those that differ by more than the tolerance.
  // The largest absolute difference of two elements, those within the tolerance too; infinite where
  // only one is NaN or infinite.
  double largest = 0;
};

// Adds the differences of two blocks of equally many elements. Elements of one type and the same
// bits are equal (NaN too). `tolerance` is for floats: those that differ by no more are equal; 0:
// bits decide, or values where the types differ.
// REQUIRES: ElementBytes of both types is known; types that differ are both floats.
void AddDifference(absl::string_view dtype_a, absl::Span<const std::byte> a,
                   absl::string_view dtype_b, absl::Span<const std::byte> b, double tolerance,
                   ValueDifference& difference);

// Converts floats to `to`, each rounded to nearest even, and gives the number of finite values that
// became infinite because `to` has none as large.
// REQUIRES: IsFloat(from); `to` is fp32, bf16 or fp16; `out` has room for as many elements as `in`.
uint64_t ConvertFloats(absl::string_view from, absl::Span<const std::byte> in, DType to,
                       absl::Span<std::byte> out);

}  // namespace dtrain::checkpoint
