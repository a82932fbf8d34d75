// Cuts text into words by the well-known regular expressions of published models, by hand: many
// times faster than a regular expression engine, which is the oracle of its tests. Immutable;
// thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/plan/tokenizer/unicode/char_classes.h"

namespace dtrain::plan {

class WordScanner {
 public:
  // The scanner for a pattern of tokenizer.json, byte for byte; nullopt: it is none of the known.
  static std::optional<WordScanner> ForPattern(absl::string_view pattern);
  // By name: "gpt2", "cl100k", "llama3", "qwen2", "o200k" or "tekken". "cl100k" is tiktoken's,
  // which keeps white space at the end of a text in one word.
  static std::optional<WordScanner> ForName(absl::string_view name);
  static std::vector<std::string> Names();
  // The pattern of a name, as tokenizer.json has it. REQUIRES: ForName knows it.
  static std::string PatternOf(absl::string_view name);

  // The end of the word that starts at `begin`; words cover the whole text. REQUIRES: begin <
  // text.size(), a character starts there, and the text is UTF-8.
  size_t WordEnd(absl::string_view text, size_t begin) const {
    return style_ == Style::kGpt2     ? Gpt2(text, begin)
           : style_ == Style::kCl100k ? Cl100k(text, begin)
                                      : O200k(text, begin);
  }

 private:
  enum class Style : uint8_t { kGpt2, kCl100k, kO200k };
  struct Known;
  static const std::vector<Known>& All();

  WordScanner(Style style, int digits_max, bool contractions, bool whole_tail)
      : style_(style),
        contractions_(contractions),
        whole_tail_(whole_tail),
        digits_max_(digits_max) {}

  size_t Gpt2(absl::string_view text, size_t begin) const;
  size_t Cl100k(absl::string_view text, size_t begin) const;
  size_t O200k(absl::string_view text, size_t begin) const;
  // The parts that the newer patterns share.
  size_t DigitsEnd(absl::string_view text, size_t begin) const;
  size_t SpaceEnd(absl::string_view text, size_t begin) const;

  const CharClasses* classes_ = &CharClasses::Get();
  Style style_;
  bool contractions_;
  bool whole_tail_;
  int digits_max_;
};

}  // namespace dtrain::plan
