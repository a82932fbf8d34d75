// What the normalizers of `tokenizers` do to single characters, each by the Unicode version of its
// own tables. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::plan {

enum CharacterRule : uint8_t {
  kDropped = 1,   // BertNormalizer's clean_text removes it: a control character.
  kChinese = 2,   // BertNormalizer puts it between spaces.
  kAccent = 4,    // BertNormalizer's strip_accents removes it, after NFD.
  kMark = 8,      // StripAccents removes it.
  kCapital = 16,  // Its lower case is another text.
};

// The bits of CharacterRule. REQUIRES: code_point < 0x110000.
uint8_t RulesOf(uint32_t code_point);

void AppendLower(uint32_t code_point, std::string* text);

// The normalizers Lowercase and StripAccents. REQUIRES: `text` is UTF-8.
std::string Lowercased(absl::string_view text);
std::string WithoutMarks(absl::string_view text);

}  // namespace dtrain::plan
