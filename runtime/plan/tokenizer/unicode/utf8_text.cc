#include "runtime/plan/tokenizer/unicode/utf8_text.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace dtrain::plan {
namespace {

constexpr absl::string_view kReplacementText = "\xEF\xBF\xBD";

// The length of the valid character at `text[i]`; 0: there is none, and `*wrong` bytes are to be
// replaced by one U+FFFD.
size_t ValidLength(absl::string_view text, size_t i, size_t* wrong) {
  const auto byte = [&](size_t k) {
    return i + k < text.size() ? uint32_t{static_cast<uint8_t>(text[i + k])} : 0U;
  };
  const uint32_t first = byte(0);
  *wrong = 1;
  if (first < 0x80) {
    return 1;
  }
  if (first < 0xc2 || first > 0xf4) {
    return 0;
  }
  const size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  // Bounds of the second byte: no overlong forms, no surrogates, nothing above U+10FFFF.
  const uint32_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const uint32_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < low || byte(1) > high) {
    return 0;
  }
  for (size_t k = 2; k < length; ++k) {
    if ((byte(k) & 0xc0) != 0x80) {
      *wrong = k;
      return 0;
    }
  }
  return length;
}

// The first place that is not valid, or the size.
size_t FirstWrong(absl::string_view text, size_t i) {
  size_t wrong = 0;
  while (i < text.size()) {
    if (i + 8 <= text.size()) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i, 8);
      if ((word & 0x8080808080808080ULL) == 0) {
        i += 8;
        continue;
      }
    }
    const size_t length = ValidLength(text, i, &wrong);
    if (length == 0) {
      return i;
    }
    i += length;
  }
  return i;
}

}  // namespace

void AppendCodePoint(uint32_t code_point, std::string* text) {
  const auto push = [&](uint32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xc0 | code_point >> 6);
    push(0x80 | (code_point & 63));
  } else if (code_point < 0x10000) {
    push(0xe0 | code_point >> 12);
    push(0x80 | (code_point >> 6 & 63));
    push(0x80 | (code_point & 63));
  } else {
    push(0xf0 | code_point >> 18);
    push(0x80 | (code_point >> 12 & 63));
    push(0x80 | (code_point >> 6 & 63));
    push(0x80 | (code_point & 63));
  }
}

absl::string_view RepairedUtf8(absl::string_view bytes, std::string* storage) {
  size_t wrong_at = FirstWrong(bytes, 0);
  if (wrong_at == bytes.size()) {
    return bytes;
  }
  storage->clear();
  size_t begin = 0;
  while (wrong_at < bytes.size()) {
    size_t wrong = 0;
    ValidLength(bytes, wrong_at, &wrong);
    absl::StrAppend(storage, bytes.substr(begin, wrong_at - begin), kReplacementText);
    begin = wrong_at + wrong;
    wrong_at = FirstWrong(bytes, begin);
  }
  absl::StrAppend(storage, bytes.substr(begin));
  return *storage;
}

}  // namespace dtrain::plan
