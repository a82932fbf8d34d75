// The letters by which byte-level vocabularies write bytes: printable bytes are themselves, the
// others letters from U+0100 on (GPT-2's table). Pure; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::plan {

// The code point that writes a byte.
uint32_t LetterOfByte(uint8_t byte);

// The bytes that `token` writes; nullopt: a character of it writes no byte. REQUIRES: UTF-8.
std::optional<std::string> BytesOfLetters(absl::string_view token);

// The text that writes `bytes`.
std::string LettersOfBytes(absl::string_view bytes);

}  // namespace dtrain::plan
