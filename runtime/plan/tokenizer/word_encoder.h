// What a model other than byte pairs makes of one word of a text.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"

namespace dtrain::plan {

// Immutable; thread-safe.
class WordEncoder {
 public:
  virtual ~WordEncoder() = default;

  // Appends the tokens of `word`. REQUIRES: it is UTF-8.
  virtual void EncodeWord(absl::string_view word, std::vector<uint32_t>* ids) const = 0;

 protected:
  WordEncoder() = default;
};

}  // namespace dtrain::plan
