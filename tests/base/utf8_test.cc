#include "base/text/utf8.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace dtrain::utf8_test {
namespace {

// Gives the shortest encoding of `code`, as RFC 3629 defines it in section 3.
std::string Utf8Of(uint32_t code) {
  if (code < 0x80) {
    return {static_cast<char>(code)};
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  std::string text(1, static_cast<char>((0xff00U >> (more + 1)) | (code >> (6 * more))));
  for (int i = more - 1; i >= 0; --i) {
    text += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3f));
  }
  return text;
}

bool IsCharacter(uint32_t code) { return code < 0xd800 || (code > 0xdfff && code <= 0x10ffff); }

// Says whether `text` is a sequence of encodings: its first bytes, decoded and encoded again, must
// be themselves, and so must the rest.
bool AreEncodings(const std::string& text) {
  for (size_t n = 1; n <= std::min<size_t>(4, text.size()); ++n) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    uint32_t code = n == 1 ? byte(0) : byte(0) & (0x7fU >> n);
    for (size_t i = 1; i < n; ++i) {
      code = (code << 6) | (byte(i) & 0x3fU);
    }
    if (IsCharacter(code) && Utf8Of(code) == text.substr(0, n)) {
      return AreEncodings(text.substr(n));
    }
  }
  return text.empty();
}

TEST(Utf8Test, TextIsExactlyTheEncodingsOfCharacters) {
  int64_t wrong = 0;
  for (uint32_t code = 0; code <= 0x110000; ++code) {
    wrong += IsUtf8(Utf8Of(code)) == IsCharacter(code) ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0) << "characters";
  for (int first = 0x80; first < 0x100; ++first) {
    for (int second = 0; second < 0x100; ++second) {
      for (const char* const rest : {"", "\x80", "\xbf", "\xc0", "\x7f", "\x80\x80", "\xbf\xbf",
                                     "\x80\xc0", "\xbf\x7f", "\x80\x80\x80"}) {
        const std::string text =
            absl::StrCat(std::string{static_cast<char>(first), static_cast<char>(second)}, rest);
        ASSERT_EQ(IsUtf8(text), AreEncodings(text)) << absl::CHexEscape(text);
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::utf8_test
