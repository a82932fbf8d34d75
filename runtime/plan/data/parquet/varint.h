// Numbers in base 128 with the lowest digits first, as Thrift, Parquet's runs and Snappy have them.
// Pure; any bytes are safe.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace dtrain::plan::parquet {

// The number that `bytes` begins with, which is removed. OutOfRange: they end inside it;
// InvalidArgument: it has more than `bits_max` bits. REQUIRES: `bits_max` is 1 to 64.
inline absl::StatusOr<uint64_t> TakeVarint(absl::string_view* bytes, int bits_max = 64) {
  uint64_t value = 0;
  for (int shift = 0; shift < bits_max; shift += 7) {
    if (bytes->empty()) {
      return absl::OutOfRangeError("it ends too early");
    }
    const auto byte = static_cast<uint8_t>(bytes->front());
    bytes->remove_prefix(1);
    const uint64_t digit = byte & 0x7fU;
    if (bits_max - shift < 7 && digit >> (bits_max - shift) != 0) {
      break;
    }
    value |= digit << shift;
    if (byte < 0x80) {
      return value;
    }
  }
  return absl::InvalidArgumentError(absl::StrFormat("a number has more than %d bits", bits_max));
}

}  // namespace dtrain::plan::parquet
