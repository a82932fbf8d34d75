#include "runtime/plan/tokenizer/regex.h"

#include <pcre2.h>

#include <array>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/status.h"
#include "runtime/plan/tokenizer/unicode/regex_classes.h"

namespace dtrain::plan {
namespace {

constexpr size_t kPatternBytesMax = 1 << 16;
constexpr uint32_t kMatchStepsMax = 1000000;
constexpr size_t kStackBytesMax = 1 << 20;

absl::Status Refusal(absl::string_view pattern, size_t at, absl::string_view what) {
  return absl::UnimplementedError(absl::StrFormat(
      "the regular expression \"%s\" has %s at byte %d, which dtrain does not support",
      absl::Utf8SafeCEscape(std::string(pattern.substr(0, 300))), what, at));
}

// Rewrites a pattern from left to right.
class Translation {
 public:
  explicit Translation(absl::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        DT_RETURN_IF_ERROR(Escape());
      } else if (in_class_) {
        DT_RETURN_IF_ERROR(InClass(c));
      } else {
        DT_RETURN_IF_ERROR(Outside(c));
      }
    }
    return std::move(out_);
  }

 private:
  absl::string_view Rest() const { return pattern_.substr(at_); }

  void Copy(size_t bytes) {
    absl::StrAppend(&out_, pattern_.substr(at_, bytes));
    at_ += bytes;
  }

  // Whether "{", `before`, some digits and `behind` stand here.
  bool IntervalBegins(absl::string_view before, absl::string_view behind) const {
    absl::string_view rest = Rest().substr(1);
    if (!absl::ConsumePrefix(&rest, before)) {
      return false;
    }
    const size_t digits = rest.find_first_not_of("0123456789");
    return digits != 0 && digits != absl::string_view::npos &&
           absl::StartsWith(rest.substr(digits), behind);
  }

  absl::Status InClass(char c) {
    if (c == '[') {
      return Refusal(pattern_, at_, "a class within a class");
    }
    if (Rest().substr(0, 2) == "&&") {
      return Refusal(pattern_, at_, "an intersection of classes (&&)");
    }
    in_class_ = c != ']' || at_ == class_begin_;
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status Outside(char c) {
    if (c == '[') {
      in_class_ = true;
      Copy(Rest().substr(0, 2) == "[^" ? 2 : 1);
      class_begin_ = at_;
      return absl::OkStatus();
    }
    if (Rest().substr(0, 2) == "(?" && Rest().substr(0, 3) != "(?:" &&
        Rest().substr(0, 3) != "(?=" && Rest().substr(0, 3) != "(?!" &&
        Rest().substr(0, 4) != "(?i:" && Rest().substr(0, 4) != "(?<=" &&
        Rest().substr(0, 4) != "(?<!" && Rest().substr(0, 3) != "(?>") {
      return Refusal(pattern_, at_, absl::StrCat("the group \"", Rest().substr(0, 4), "\""));
    }
    // Oniguruma reads {,3} as {0,3} and {3}? as an optional repeat; PCRE2 10.42 reads the first as
    // text, and the second as a repeat that takes little.
    if (c == '{' && IntervalBegins(",", "}")) {
      return Refusal(pattern_, at_, "an interval without its least number ({,n})");
    }
    if (c == '{' && IntervalBegins("", "}?")) {
      return Refusal(pattern_, at_, "an optional interval ({n}?)");
    }
    // Oniguruma reads {1,3}+ as a repeated repeat, other engines as a possessive one.
    if (Rest().substr(0, 2) == "}+") {
      return Refusal(pattern_, at_, "a possessive interval ({n,m}+)");
    }
    if (c == '^' || c == '$') {  // The ends of lines in Oniguruma.
      absl::StrAppend(&out_, "(?m:", std::string(1, c), ")");
      ++at_;
      return absl::OkStatus();
    }
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status Escape() {
    if (at_ + 1 == pattern_.size()) {
      return Refusal(pattern_, at_, "a backslash at its end");
    }
    const char c = pattern_[at_ + 1];
    if (c == 'p' || c == 'P') {
      return Property(c == 'P');
    }
    if (c == 's' || c == 'S') {  // PCRE2's \s has U+180E too.
      out_ += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
      at_ += 2;
      return absl::OkStatus();
    }
    if (c == 'd' || c == 'D') {
      Append(PropertyClass("Nd", in_class_ && c == 'D'), c == 'D');
      at_ += 2;
      return absl::OkStatus();
    }
    if (c == 'w' || c == 'W') {
      Append(in_class_ ? WordClass(c == 'W') : BareWords(), c == 'W');
      at_ += 2;
      return absl::OkStatus();
    }
    if (!in_class_ && (c == 'b' || c == 'B')) {
      Boundary(c == 'B');
      at_ += 2;
      return absl::OkStatus();
    }
    if (c == 'u' && at_ + 6 <= pattern_.size()) {
      for (size_t i = at_ + 2; i < at_ + 6; ++i) {
        if (!absl::ascii_isxdigit(static_cast<unsigned char>(pattern_[i]))) {
          return Refusal(pattern_, at_, "an incomplete \\u");
        }
      }
      absl::StrAppend(&out_, "\\x{", pattern_.substr(at_ + 2, 4), "}");
      at_ += 6;
      return absl::OkStatus();
    }
    constexpr absl::string_view kSame = "rntfavxbzA";
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) &&
        kSame.find(c) == absl::string_view::npos) {
      return Refusal(pattern_, at_, absl::StrCat("the escape \"\\", std::string(1, c), "\""));
    }
    if (c == 'v') {  // A vertical tab in Oniguruma, a class of spaces in PCRE2.
      out_ += "\\x0b";
      at_ += 2;
      return absl::OkStatus();
    }
    Copy(2);
    return absl::OkStatus();
  }

  // \p{L}, with the characters that are newer than PCRE2's tables.
  absl::Status Property(bool negated) {
    const size_t end = pattern_.find('}', at_);
    if (pattern_.substr(at_ + 2, 1) != "{" || end == absl::string_view::npos) {
      return Refusal(pattern_, at_, "\\p without a name in braces");
    }
    absl::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.remove_prefix(1);
    }
    const std::string found = PropertyClass(name, in_class_ && negated);
    if (found.empty()) {
      return Refusal(pattern_, at_, absl::StrCat("the property \"", name, "\""));
    }
    Append(found, negated);
    at_ = end + 1;
    return absl::OkStatus();
  }

  // Adds what stands between the brackets of a class; makes it a class, or all but it, where it
  // is not in one.
  void Append(absl::string_view members, bool negated) {
    if (in_class_) {
      absl::StrAppend(&out_, members);
    } else {
      absl::StrAppend(&out_, negated ? "[^" : "[", members, "]");
    }
  }

  // \w outside of a class.
  static std::string BareWords() {
    return absl::StrCat(WordClass(/*negated=*/false), kWordsOfLatin1);
  }

  // \b, or \B.
  void Boundary(bool negated) {
    const std::string words = BareWords();
    absl::StrAppend(&out_, "(?:(?<=[", words, negated ? "])(?=[" : "])(?![", words, "])|(?<![",
                    words, negated ? "])(?![" : "])(?=[", words, "]))");
  }

  absl::string_view pattern_;
  std::string out_;
  size_t at_ = 0;
  size_t class_begin_ = 0;  // The place after "[" or "[^", where "]" is a character.
  bool in_class_ = false;
};

std::string ErrorText(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// The buffers that a thread needs for matching; made once a thread.
struct MatchState {
  MatchState()
      : data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(32 << 10, kStackBytesMax, nullptr)) {
    DT_CHECK(data != nullptr && context != nullptr) << "no memory for a match";
    pcre2_set_match_limit(context, kMatchStepsMax);
    if (stack != nullptr) {
      pcre2_jit_stack_assign(context, nullptr, stack);
    }
  }
  ~MatchState() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;

  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

}  // namespace

void Regex::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

absl::StatusOr<std::string> TranslateRegex(absl::string_view pattern) {
  return Translation(pattern).Run();
}

std::string EscapeRegex(absl::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (absl::ascii_ispunct(static_cast<unsigned char>(c))) {
      pattern += '\\';
    }
    pattern += c;
  }
  return pattern;
}

absl::StatusOr<Regex> Regex::Compile(const std::string& pattern) {
  if (pattern.size() > kPatternBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a regular expression has %d bytes; at most %d are read", pattern.size(),
                        kPatternBytesMax));
  }
  DT_ASSIGN_OR_RETURN(const std::string translated, TranslateRegex(pattern));
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  if (code == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the regular expression \"%s\" is wrong: %s (at byte %d of \"%s\")",
                        absl::Utf8SafeCEscape(pattern.substr(0, 300)), ErrorText(error), at,
                        absl::Utf8SafeCEscape(translated.substr(0, 300))));
  }
  Regex regex(code, pattern);
  uint32_t matches_nothing = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &matches_nothing);
  if (matches_nothing != 0) {
    return Refusal(pattern, 0, "a match of the empty text");
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // Without JIT, pcre2_match interprets.
  return regex;
}

absl::Status Regex::ForEachMatch(absl::string_view text,
                                 absl::FunctionRef<void(size_t, size_t)> visit) const {
  thread_local MatchState state;
  size_t begin = 0;
  while (begin < text.size()) {
    const int code =
        pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin,
                    PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, state.data, state.context);
    if (code == PCRE2_ERROR_NOMATCH) {
      break;
    }
    if (code < 0) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "the tokenizer's regular expression \"%s\" needs too much work at byte %d of a text of "
          "%d bytes (%s); split the text, or leave it out",
          absl::Utf8SafeCEscape(pattern_.substr(0, 300)), begin, text.size(), ErrorText(code)));
    }
    const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(state.data);
    visit(ends[0], ends[1]);
    begin = ends[1];
  }
  return absl::OkStatus();
}

}  // namespace dtrain::plan
