// The few pieces of the protobuf wire format that event files need. Pure.
#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::wire {

inline void PutVarint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

template <typename Integer>
void PutLittleEndian(std::string& out, Integer value) {
  for (size_t i = 0; i < sizeof(Integer); ++i) {
    out += static_cast<char>(value >> (8 * i));
  }
}

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

inline void PutTag(std::string& out, uint32_t field, WireType type) {
  PutVarint(out, field << 3 | type);
}
inline void PutInteger(std::string& out, uint32_t field, int64_t value) {
  PutTag(out, field, kVarint);
  PutVarint(out, static_cast<uint64_t>(value));
}
inline void PutDouble(std::string& out, uint32_t field, double value) {
  PutTag(out, field, kFixed64);
  PutLittleEndian(out, std::bit_cast<uint64_t>(value));
}
inline void PutFloat(std::string& out, uint32_t field, float value) {
  PutTag(out, field, kFixed32);
  PutLittleEndian(out, std::bit_cast<uint32_t>(value));
}
inline void PutBytes(std::string& out, uint32_t field, absl::string_view bytes) {
  PutTag(out, field, kBytes);
  PutVarint(out, bytes.size());
  out.append(bytes.data(), bytes.size());
}

}  // namespace dtrain::wire
