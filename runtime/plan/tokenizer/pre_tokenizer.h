// The "pre_tokenizer" of a tokenizer.json: cuts a text into the words that are encoded each for
// itself. Immutable; thread-safe.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"
#include "runtime/plan/tokenizer/regex.h"
#include "runtime/plan/tokenizer/word_scanner.h"

namespace dtrain::plan {

class PreTokenizer {
 public:
  using Sink = absl::FunctionRef<void(absl::string_view word)>;

  PreTokenizer() = default;
  // Null gives one that cuts nothing. Unimplemented: a type or field that is not known.
  static absl::StatusOr<PreTokenizer> FromJson(const Json& json);
  // The words of a known pattern as bytes, as tiktoken cuts them.
  static PreTokenizer OfScanner(const WordScanner& scanner);

  // Cuts in addition before each U+2581 that no character of `never_after` precedes.
  void AddCutsBeforeSpaceMark(std::set<uint32_t> never_after);

  // Whether words are encoded by their bytes (ByteLevel).
  bool bytes() const { return bytes_; }

  // Whether the start of a text is cut otherwise than other places, and whether a text is cut
  // before that.
  bool marks_start() const;
  bool cuts_before_start_is_marked() const;

  // Calls `sink` with the words of `text` in order. `is_start`: the text stands at the start of the
  // whole one. Errors as of Regex::ForEachMatch.
  absl::Status ForEachWord(absl::string_view text, bool is_start, Sink sink) const;

 private:
  enum class Kind { kScanner, kRegex, kClass, kPrefixSpace, kMetaspace, kSpaceMark, kWords };
  enum class Behavior { kRemoved, kIsolated, kWithPrevious, kWithNext, kContiguous };
  enum class Prepend { kAlways, kFirst, kNever };
  struct Stage {
    Kind kind = Kind::kRegex;
    std::optional<WordScanner> scanner;
    std::optional<Regex> regex;
    uint8_t char_class = 0;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    std::string mark;  // Metaspace: what stands for a space.
    Prepend prepend = Prepend::kAlways;
    bool split = true;
    std::set<uint32_t> never_after;
    bool isolates_punctuation = false;  // Words: each punctuation character is one.
  };
  // A range of a text, and whether the pattern matched it.
  struct Piece {
    size_t begin;
    size_t end;
    bool is_match;
  };

  static bool IsStartMark(const Stage& stage);
  absl::Status Add(const Json& json, const std::string& where, int depth);
  absl::Status AddByteLevel(const Json& json, const std::string& where);
  absl::Status AddMetaspace(const Json& json, const std::string& where);
  absl::Status AddSplit(const Json& json, const std::string& where);
  static absl::StatusOr<Behavior> BehaviorOf(const Json& json, const std::string& where);
  static absl::StatusOr<std::vector<Piece>> Matches(const Stage& stage, absl::string_view text);
  static std::vector<Piece> Joined(std::vector<Piece> pieces, Behavior behavior);
  absl::Status Run(size_t stage, absl::string_view text, bool is_start, Sink sink) const;
  absl::Status RunMetaspace(size_t index, absl::string_view text, bool is_start, Sink sink) const;
  absl::Status RunSpaceMark(size_t index, absl::string_view text, bool is_start, Sink sink) const;
  absl::Status RunWords(size_t index, absl::string_view text, bool is_start, Sink sink) const;

  std::vector<Stage> stages_;
  bool bytes_ = false;
};

}  // namespace dtrain::plan
