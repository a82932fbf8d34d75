// A 64-bit hash that is the same in every build and on every machine: for "do all ranks hold the
// same plan", never for secrecy. Not thread-safe.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/numeric/prng.h"

namespace dtrain::plan {

class StableHash {
 public:
  StableHash& Add(uint64_t value) {
    state_ = MixBits(state_ ^ value) + 0x9e3779b97f4a7c15ULL;
    return *this;
  }
  // The length is hashed too, so that ("ab", "c") and ("a", "bc") differ.
  StableHash& Add(absl::string_view text) {
    Add(uint64_t{text.size()});
    uint64_t word = 0;
    unsigned bytes = 0;
    for (const char c : text) {
      word |= uint64_t{static_cast<unsigned char>(c)} << (8 * bytes);
      if (++bytes == 8) {
        Add(word);
        word = 0;
        bytes = 0;
      }
    }
    return bytes == 0 ? *this : Add(word);
  }
  uint64_t value() const { return MixBits(state_); }

 private:
  uint64_t state_ = 0x6474726169696e31ULL;
};

}  // namespace dtrain::plan
