// The header of a safetensors file: strict parser and the encoder that matches the reference byte
// for byte.
//
// File: u64 N (little-endian) | N bytes of JSON, first byte '{', padded with spaces | data. Pure
// functions; thread-safe. Sizes are checked for overflow before they are used.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/numeric/dtype.h"

namespace dtrain::checkpoint {

inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;
// Limits beyond the format on a header's content, so that a hostile header cannot take a large
// multiple of its size in memory. Published models have at most some hundred thousand tensors in
// all of their files, and a few dozen keys of metadata; LibTorch's operations take 64 dimensions.
inline constexpr size_t kSafetensorsTensorsMax = 1'000'000;
inline constexpr size_t kSafetensorsMetadataMax = 10'000;
inline constexpr size_t kSafetensorsDimensionsMax = 64;
// Limit on a name or a value of metadata.
inline constexpr size_t kSafetensorsTextBytesMax = 16 << 20;

// One tensor in a file. Row-major; [] is a scalar.
struct TensorEntry {
  std::string name;
  std::string dtype;  // Type in the format's spelling: "F32", "BF16", "F8_E4M3", ...
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  // Bytes from the start of the data.
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<TensorEntry> tensors;  // In offset order; they cover the data without a gap.
  uint64_t data_begin = 0;           // Offset of the data in the file: 8 + N.
  std::vector<std::string> warnings;

  uint64_t data_bytes() const { return tensors.empty() ? 0 : tensors.back().end; }
};

// The format's name of a type, "F32" for kFloat32. Every DType has one.
absl::string_view SafetensorsDType(DType dtype);
// The DType of a name; nothing for types that dtrain does not compute with.
std::optional<DType> DTypeFromSafetensors(absl::string_view name);
// Bits of one element; nothing for an unknown name.
std::optional<int> SafetensorsBits(absl::string_view name);

// The header's N from the first 8 bytes of a file of `file_bytes` bytes.
absl::StatusOr<uint64_t> ParseSafetensorsLength(absl::string_view first_8_bytes,
                                                uint64_t file_bytes);
// Parses the N bytes of JSON and checks that the tensors cover the file exactly. Errors
// (InvalidArgument) begin with the reference's text if it has one, and name the tensor.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         uint64_t file_bytes);

// Whether the reference writer has a tensor before another one in a file: by dtype, descending,
// then by name.
bool ComesBefore(absl::string_view dtype, absl::string_view name, absl::string_view other_dtype,
                 absl::string_view other_name);

// Sorts `tensors` as the reference writer does (ComesBefore), sets begin and end,
// and returns the first 8 + N bytes of the file. Errors: duplicate or reserved name, unknown dtype,
// a size that overflows or is no whole number of bytes.
absl::StatusOr<std::string> EncodeSafetensorsHeader(
    const std::map<std::string, std::string>& metadata, std::vector<TensorEntry>& tensors);

// product(shape) * bits / 8, checked.
absl::StatusOr<uint64_t> TensorBytes(absl::string_view dtype, const std::vector<uint64_t>& shape);

}  // namespace dtrain::checkpoint
