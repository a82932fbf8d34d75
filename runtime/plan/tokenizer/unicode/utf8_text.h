// UTF-8 one code point at a time, and the repair of bytes that are none. Pure; thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::plan {

// Bytes of the UTF-8 character that starts with `first`. REQUIRES: the text is valid.
inline size_t Utf8Length(char first) {
  const auto byte = static_cast<uint8_t>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// The code point at `text[*position]`; moves on to the next one. REQUIRES: the text is valid.
inline uint32_t NextCodePoint(absl::string_view text, size_t* position) {
  const auto byte = [&](size_t i) { return uint32_t{static_cast<uint8_t>(text[*position + i])}; };
  const uint32_t first = byte(0);
  uint32_t value = first;
  size_t length = 1;
  if (first >= 0xf0) {
    value = (first & 7) << 18 | (byte(1) & 63) << 12 | (byte(2) & 63) << 6 | (byte(3) & 63);
    length = 4;
  } else if (first >= 0xe0) {
    value = (first & 15) << 12 | (byte(1) & 63) << 6 | (byte(2) & 63);
    length = 3;
  } else if (first >= 0x80) {
    value = (first & 31) << 6 | (byte(1) & 63);
    length = 2;
  }
  *position += length;
  return value;
}

void AppendCodePoint(uint32_t code_point, std::string* text);

// `bytes` itself if it is UTF-8; else a copy in `storage` in which each maximal part of a character
// that is cut off, and each other wrong byte, is U+FFFD (as Python's and Rust's decoders do it).
absl::string_view RepairedUtf8(absl::string_view bytes, std::string* storage);

}  // namespace dtrain::plan
