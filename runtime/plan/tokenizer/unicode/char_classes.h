// The classes of characters that pre-tokenizers ask for, by Unicode 16.0. Immutable after the first
// use; thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dtrain::plan {

enum CharClass : uint8_t {
  kLetter = 1,   // \p{L}
  kNumber = 2,   // \p{N}
  kSpace = 4,    // \s: White_Space
  kNewline = 8,  // CR or LF.
  kUpper = 16,   // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
  kLower = 32,   // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
  // \p{P} of Unicode 8, or ASCII punctuation as Rust's is_ascii_punctuation has it.
  kPunctuation = 64,
  kNumeric = 128  // \p{N} of Unicode 17, as Rust's is_numeric has it.
};

class CharClasses {
 public:
  static const CharClasses& Get();

  // The bits of CharClass. REQUIRES: code_point < 0x110000.
  uint8_t Of(uint32_t code_point) const {
    return blocks_[size_t{index_[code_point >> 8]} << 8 | (code_point & 255)];
  }
  uint8_t OfAscii(uint8_t byte) const { return blocks_[byte]; }

 private:
  CharClasses();

  std::array<uint16_t, 0x1100> index_;  // The block of each 256 code points; equal ones are shared.
  std::vector<uint8_t> blocks_;
};

// The general category by Unicode 16.0, a utf8proc_category_t. REQUIRES: code_point < 0x110000.
int CategoryOf(uint32_t code_point);

}  // namespace dtrain::plan
