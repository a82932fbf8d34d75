// Regular expressions of tokenizer files by PCRE2 with JIT.
//
// The files are written for Oniguruma (tokenizer.json) and Rust's regex (tiktoken). What means
// something else in PCRE2 is translated or refused. Work is bounded, because both the pattern and
// the text come from elsewhere. Immutable; thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct pcre2_real_code_8;

namespace dtrain::plan {

class Regex {
 public:
  // InvalidArgument or Unimplemented: the message names `pattern` and the place in it. A pattern
  // that matches the empty text is refused.
  static absl::StatusOr<Regex> Compile(const std::string& pattern);

  // Calls `visit(begin, end)` for each match in `text` from left to right. REQUIRES: `text` is
  // UTF-8. ResourceExhausted: a match needs more than a million steps.
  absl::Status ForEachMatch(absl::string_view text,
                            absl::FunctionRef<void(size_t begin, size_t end)> visit) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  explicit Regex(pcre2_real_code_8* code, std::string pattern)
      : code_(code), pattern_(std::move(pattern)) {}

  std::unique_ptr<pcre2_real_code_8, Free> code_;
  std::string pattern_;
};

// `pattern` in PCRE2's language.
absl::StatusOr<std::string> TranslateRegex(absl::string_view pattern);

// `text` as a pattern that matches it.
std::string EscapeRegex(absl::string_view text);

}  // namespace dtrain::plan
