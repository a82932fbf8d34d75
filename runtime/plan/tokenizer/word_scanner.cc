#include "runtime/plan/tokenizer/word_scanner.h"

#include "base/check.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"

namespace dtrain::plan {
namespace {

constexpr uint8_t kNotOther = kSpace | kLetter | kNumber;

// A character of the text: its class and its length; length 0 at the end of the text.
struct Char {
  uint8_t bits = 0;
  uint8_t length = 0;
};

inline Char CharAt(const CharClasses& classes, absl::string_view text, size_t i) {
  if (i >= text.size()) {
    return {};
  }
  const auto byte = static_cast<uint8_t>(text[i]);
  if (byte < 0x80) {
    return {classes.OfAscii(byte), 1};
  }
  size_t next = i;
  const uint32_t code_point = NextCodePoint(text, &next);
  return {classes.Of(code_point), static_cast<uint8_t>(next - i)};
}

// The end of the run of characters with any of `bits`.
inline size_t RunEnd(const CharClasses& classes, absl::string_view text, size_t i, uint8_t bits) {
  for (Char c = CharAt(classes, text, i); (c.bits & bits) != 0; c = CharAt(classes, text, i)) {
    i += c.length;
  }
  return i;
}

// The end of the run of characters that are no space, letter or number.
inline size_t OtherEnd(const CharClasses& classes, absl::string_view text, size_t i) {
  for (Char c = CharAt(classes, text, i); c.length != 0 && (c.bits & kNotOther) == 0;
       c = CharAt(classes, text, i)) {
    i += c.length;
  }
  return i;
}

inline char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 32) : c; }

// The length of 's, 't, 're, 've, 'm, 'll or 'd at `i`; 0: there is none.
size_t ContractionLength(absl::string_view text, size_t i, bool any_case) {
  if (i + 1 >= text.size() || text[i] != '\'') {
    return 0;
  }
  const auto at = [&](size_t k) {
    return k >= text.size() ? '\0' : any_case ? Lower(text[k]) : text[k];
  };
  const char first = at(i + 1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') {
    return 2;
  }
  const char second = at(i + 2);
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
      (first == 'l' && second == 'l')) {
    return 3;
  }
  // U+017F folds to "s".
  return any_case && text.substr(i + 1, 2) == "\xC5\xBF" ? 3 : 0;
}

size_t LastCharLength(absl::string_view text, size_t end) {
  size_t length = 1;
  while ((static_cast<uint8_t>(text[end - length]) & 0xc0) == 0x80) {
    ++length;
  }
  return length;
}

// The match of \s+(?!\S)|\s+ in the run of spaces [begin, end).
inline size_t SpacesBeforeWord(absl::string_view text, size_t begin, size_t end) {
  if (end == text.size()) {
    return end;
  }
  const size_t last = LastCharLength(text, end);
  return end - begin > last ? end - last : end;
}

constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kCl100kPattern =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+|)"
    R"( ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
constexpr const char* kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{)"
    R"(Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{)"
    R"(Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace

struct WordScanner::Known {
  const char* name;
  const char* pattern;
  WordScanner scanner;
};

const std::vector<WordScanner::Known>& WordScanner::All() {
  static const std::vector<Known>* const kAll = new std::vector<Known>{
      {"gpt2", kGpt2Pattern, WordScanner(Style::kGpt2, 0, true, false)},
      {"cl100k", kCl100kPattern, WordScanner(Style::kCl100k, 3, true, true)},
      {"llama3", kLlama3Pattern, WordScanner(Style::kCl100k, 3, true, false)},
      {"qwen2", kQwen2Pattern, WordScanner(Style::kCl100k, 1, true, false)},
      {"o200k", kO200kPattern, WordScanner(Style::kO200k, 3, true, false)},
      {"tekken", kTekkenPattern, WordScanner(Style::kO200k, 1, false, false)},
  };
  return *kAll;
}

std::optional<WordScanner> WordScanner::ForPattern(absl::string_view pattern) {
  for (const Known& known : All()) {
    // tiktoken's own cl100k pattern is no pattern of tokenizer.json: engines read it differently.
    if (pattern == known.pattern && !known.scanner.whole_tail_) {
      return known.scanner;
    }
  }
  return std::nullopt;
}

std::optional<WordScanner> WordScanner::ForName(absl::string_view name) {
  for (const Known& known : All()) {
    if (name == known.name) {
      return known.scanner;
    }
  }
  return std::nullopt;
}

std::vector<std::string> WordScanner::Names() {
  std::vector<std::string> names;
  for (const Known& known : All()) {
    names.emplace_back(known.name);
  }
  return names;
}

std::string WordScanner::PatternOf(absl::string_view name) {
  for (const Known& known : All()) {
    if (name == known.name) {
      return known.pattern;
    }
  }
  DT_CHECK(false) << "no pattern is called " << std::string(name);
  return "";
}

size_t WordScanner::Gpt2(absl::string_view text, size_t begin) const {
  if (const size_t length = ContractionLength(text, begin, /*any_case=*/false); length != 0) {
    return begin + length;
  }
  Char first = CharAt(*classes_, text, begin);
  size_t after = begin + first.length;
  if (text[begin] == ' ') {  // " ?" takes it, unless a space or the end follows.
    const Char second = CharAt(*classes_, text, after);
    if (second.length != 0 && (second.bits & kSpace) == 0) {
      first = second;
      after += second.length;
    }
  }
  if ((first.bits & kLetter) != 0) {
    return RunEnd(*classes_, text, after, kLetter);
  }
  if ((first.bits & kNumber) != 0) {
    return RunEnd(*classes_, text, after, kNumber);
  }
  if ((first.bits & kSpace) == 0) {
    return OtherEnd(*classes_, text, after);
  }
  return SpacesBeforeWord(text, begin, RunEnd(*classes_, text, after, kSpace));
}

size_t WordScanner::DigitsEnd(absl::string_view text, size_t begin) const {
  size_t end = begin;
  for (int i = 0; i < digits_max_; ++i) {
    const Char c = CharAt(*classes_, text, end);
    if ((c.bits & kNumber) == 0) {
      break;
    }
    end += c.length;
  }
  return end;
}

// \s*[\r\n]+|\s+(?!\S)|\s+
size_t WordScanner::SpaceEnd(absl::string_view text, size_t begin) const {
  const size_t end = RunEnd(*classes_, text, begin, kSpace);
  if (whole_tail_ && end == text.size()) {
    return end;
  }
  for (size_t i = end; i > begin; --i) {
    if (text[i - 1] == '\n' || text[i - 1] == '\r') {
      return i;
    }
  }
  return SpacesBeforeWord(text, begin, end);
}

size_t WordScanner::Cl100k(absl::string_view text, size_t begin) const {
  if (const size_t length = ContractionLength(text, begin, /*any_case=*/true); length != 0) {
    return begin + length;
  }
  const Char first = CharAt(*classes_, text, begin);
  const size_t after = begin + first.length;
  if ((first.bits & kLetter) != 0) {
    return RunEnd(*classes_, text, after, kLetter);
  }
  if ((first.bits & kNumber) != 0) {
    return DigitsEnd(text, begin);
  }
  const Char second = CharAt(*classes_, text, after);
  if ((first.bits & kNewline) == 0 && (second.bits & kLetter) != 0) {
    return RunEnd(*classes_, text, after + second.length, kLetter);
  }
  const bool space_before_other =
      text[begin] == ' ' && second.length != 0 && (second.bits & kNotOther) == 0;
  if ((first.bits & kSpace) == 0 || space_before_other) {
    return RunEnd(*classes_, text, OtherEnd(*classes_, text, after), kNewline);
  }
  return SpaceEnd(text, begin);
}

size_t WordScanner::O200k(absl::string_view text, size_t begin) const {
  const Char first = CharAt(*classes_, text, begin);
  const auto with_contraction = [&](size_t end) {
    return contractions_ ? end + ContractionLength(text, end, /*any_case=*/true) : end;
  };
  // [upper]*[lower]+ from `from`, else [upper]+; 0: neither. Letters without case and marks are in
  // both classes; when no lower-case letter follows, the last of them is the [lower]+.
  const auto cased_end = [&](size_t from, bool needs_lower) -> size_t {
    size_t i = from;
    size_t last_of_both = 0;
    for (Char c = CharAt(*classes_, text, i); (c.bits & kUpper) != 0;
         c = CharAt(*classes_, text, i)) {
      i += c.length;
      last_of_both = (c.bits & kLower) != 0 ? i : last_of_both;
    }
    const size_t lower_end = RunEnd(*classes_, text, i, kLower);
    if (needs_lower) {
      return lower_end > i ? lower_end : last_of_both;
    }
    return i > from ? i : 0;
  };
  const bool may_be_prefix = (first.bits & (kNewline | kLetter | kNumber)) == 0;
  const size_t after = begin + first.length;
  for (const bool needs_lower : {true, false}) {
    if (may_be_prefix) {
      if (const size_t end = cased_end(after, needs_lower); end != 0) {
        return with_contraction(end);
      }
    }
    if (const size_t end = cased_end(begin, needs_lower); end != 0) {
      return with_contraction(end);
    }
  }
  if ((first.bits & kNumber) != 0) {
    return DigitsEnd(text, begin);
  }
  const Char second = CharAt(*classes_, text, after);
  const bool space_before_other =
      text[begin] == ' ' && second.length != 0 && (second.bits & kNotOther) == 0;
  if ((first.bits & kSpace) == 0 || space_before_other) {
    size_t end = OtherEnd(*classes_, text, after);
    while (end < text.size() && (text[end] == '\r' || text[end] == '\n' || text[end] == '/')) {
      ++end;
    }
    return end;
  }
  return SpaceEnd(text, begin);
}

}  // namespace dtrain::plan
