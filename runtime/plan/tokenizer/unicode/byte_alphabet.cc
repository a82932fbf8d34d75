#include "runtime/plan/tokenizer/unicode/byte_alphabet.h"

#include <array>

#include "runtime/plan/tokenizer/unicode/utf8_text.h"

namespace dtrain::plan {
namespace {

constexpr uint32_t kLettersEnd = 256 + 68;  // 68 bytes are not printable.

struct Tables {
  std::array<uint32_t, 256> letters{};
  std::array<int, kLettersEnd> bytes{};
};

constexpr Tables MakeTables() {
  Tables tables;
  for (int& byte : tables.bytes) {
    byte = -1;
  }
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    const uint32_t letter = is_printable ? byte : next++;
    tables.letters[byte] = letter;
    tables.bytes[letter] = static_cast<int>(byte);
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

uint32_t LetterOfByte(uint8_t byte) { return kTables.letters[byte]; }

std::optional<std::string> BytesOfLetters(absl::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const uint32_t letter = NextCodePoint(token, &i);
    if (letter >= kLettersEnd || kTables.bytes[letter] < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(kTables.bytes[letter]);
  }
  return bytes;
}

std::string LettersOfBytes(absl::string_view bytes) {
  std::string letters;
  for (const char byte : bytes) {
    AppendCodePoint(LetterOfByte(static_cast<uint8_t>(byte)), &letters);
  }
  return letters;
}

}  // namespace dtrain::plan
