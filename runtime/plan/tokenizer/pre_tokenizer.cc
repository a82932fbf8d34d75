#include "runtime/plan/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "runtime/plan/tokenizer/json_fields.h"
#include "runtime/plan/tokenizer/unicode/char_classes.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"

namespace dtrain::plan {
namespace {

constexpr size_t kStagesMax = 32;
constexpr absl::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581.

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::FromJson(const Json& json) {
  PreTokenizer pre_tokenizer;
  if (!json.is_null()) {
    DT_RETURN_IF_ERROR(pre_tokenizer.Add(json, "pre_tokenizer", 0));
  }
  return pre_tokenizer;
}

PreTokenizer PreTokenizer::OfScanner(const WordScanner& scanner) {
  PreTokenizer pre_tokenizer;
  Stage stage;
  stage.kind = Kind::kScanner;
  stage.scanner = scanner;
  pre_tokenizer.stages_.push_back(std::move(stage));
  pre_tokenizer.bytes_ = true;
  return pre_tokenizer;
}

void PreTokenizer::AddCutsBeforeSpaceMark(std::set<uint32_t> never_after) {
  Stage stage;
  stage.kind = Kind::kSpaceMark;
  stage.never_after = std::move(never_after);
  stages_.push_back(std::move(stage));
}

absl::StatusOr<PreTokenizer::Behavior> PreTokenizer::BehaviorOf(const Json& json,
                                                                const std::string& where) {
  if (!json.contains("behavior")) {
    return Behavior::kIsolated;
  }
  DT_ASSIGN_OR_RETURN(const std::string name, StringField(json, where, "behavior"));
  const std::pair<const char*, Behavior> known[] = {{"Removed", Behavior::kRemoved},
                                                    {"Isolated", Behavior::kIsolated},
                                                    {"MergedWithPrevious", Behavior::kWithPrevious},
                                                    {"MergedWithNext", Behavior::kWithNext},
                                                    {"Contiguous", Behavior::kContiguous}};
  for (const auto& [known_name, behavior] : known) {
    if (name == known_name) {
      return behavior;
    }
  }
  return absl::UnimplementedError(
      absl::StrFormat("%s: the behavior \"%s\" is not supported", where, name.substr(0, 100)));
}

absl::Status PreTokenizer::AddByteLevel(const Json& json, const std::string& where) {
  DT_RETURN_IF_ERROR(OnlyFields(json, where, {"add_prefix_space", "trim_offsets", "use_regex"}));
  DT_ASSIGN_OR_RETURN(const bool prefix, BoolField(json, where, "add_prefix_space", true));
  DT_ASSIGN_OR_RETURN(const bool use_regex, BoolField(json, where, "use_regex", true));
  if (prefix) {
    stages_.emplace_back().kind = Kind::kPrefixSpace;
  }
  if (use_regex) {
    stages_.emplace_back().kind = Kind::kScanner;
    stages_.back().scanner = WordScanner::ForName("gpt2");
  }
  bytes_ = true;
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddMetaspace(const Json& json, const std::string& where) {
  DT_RETURN_IF_ERROR(OnlyFields(
      json, where, {"replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"}));
  Stage stage;
  stage.kind = Kind::kMetaspace;
  DT_ASSIGN_OR_RETURN(stage.mark, StringField(json, where, "replacement"));
  DT_ASSIGN_OR_RETURN(const bool prefix, BoolField(json, where, "add_prefix_space", true));
  DT_ASSIGN_OR_RETURN(stage.split, BoolField(json, where, "split", true));
  std::string scheme = prefix ? "always" : "never";
  if (json.contains("prepend_scheme")) {
    DT_ASSIGN_OR_RETURN(scheme, StringField(json, where, "prepend_scheme"));
  }
  if (stage.mark.empty() || (scheme != "always" && scheme != "first" && scheme != "never") ||
      (!prefix && scheme != "never")) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: \"replacement\" must be a character and \"prepend_scheme\" always, first or never "
        "(never without add_prefix_space), but they are \"%s\" and \"%s\"",
        where, stage.mark.substr(0, 100), scheme.substr(0, 100)));
  }
  stage.prepend = scheme == "always"  ? Prepend::kAlways
                  : scheme == "first" ? Prepend::kFirst
                                      : Prepend::kNever;
  stages_.push_back(std::move(stage));
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddSplit(const Json& json, const std::string& where) {
  DT_RETURN_IF_ERROR(OnlyFields(json, where, {"pattern", "behavior", "invert"}));
  Stage stage;
  DT_ASSIGN_OR_RETURN(stage.behavior, BehaviorOf(json, where));
  DT_ASSIGN_OR_RETURN(stage.invert, BoolField(json, where, "invert", false));
  DT_ASSIGN_OR_RETURN(const std::string pattern, PatternField(json, where));
  // The known patterns match everything: nothing is left between their matches.
  const bool keeps_matches =
      stage.invert ? stage.behavior == Behavior::kRemoved : stage.behavior == Behavior::kIsolated;
  if (keeps_matches) {
    stage.scanner = WordScanner::ForPattern(pattern);
  }
  if (stage.scanner.has_value()) {
    stage.kind = Kind::kScanner;
  } else {
    absl::StatusOr<Regex> regex = Regex::Compile(pattern);
    if (!regex.ok()) {
      return Annotate(regex.status(), where);
    }
    stage.regex = *std::move(regex);
  }
  stages_.push_back(std::move(stage));
  return absl::OkStatus();
}

absl::Status PreTokenizer::Add(const Json& json, const std::string& where, int depth) {
  DT_ASSIGN_OR_RETURN(const std::string type, TypeOf(json, where));
  if (bytes_ || stages_.size() >= kStagesMax) {
    return absl::UnimplementedError(absl::StrFormat(
        "%s: \"%s\" stands %s, which dtrain does not support", where, type.substr(0, 100),
        bytes_ ? "behind ByteLevel" : absl::StrFormat("behind %d others", kStagesMax)));
  }
  if (type == "Sequence" && depth < 8) {
    DT_RETURN_IF_ERROR(OnlyFields(json, where, {"pretokenizers"}));
    DT_ASSIGN_OR_RETURN(const Json* const parts, ArrayField(json, where, "pretokenizers"));
    for (size_t i = 0; i < parts->size(); ++i) {
      DT_RETURN_IF_ERROR(Add((*parts)[i], absl::StrFormat("%s[%d]", where, i), depth + 1));
    }
    return absl::OkStatus();
  }
  if (type == "ByteLevel") {
    return AddByteLevel(json, where);
  }
  if (type == "Metaspace") {
    return AddMetaspace(json, where);
  }
  if (type == "Split") {
    return AddSplit(json, where);
  }
  Stage stage;
  stage.kind = Kind::kClass;
  if (type == "Digits") {
    DT_RETURN_IF_ERROR(OnlyFields(json, where, {"individual_digits"}));
    DT_ASSIGN_OR_RETURN(const bool each, BoolField(json, where, "individual_digits", false));
    stage.char_class = kNumeric;
    stage.behavior = each ? Behavior::kIsolated : Behavior::kContiguous;
  } else if (type == "WhitespaceSplit" || type == "BertPreTokenizer") {
    DT_RETURN_IF_ERROR(OnlyFields(json, where, {}));
    stage.kind = Kind::kWords;
    stage.isolates_punctuation = type == "BertPreTokenizer";
  } else if (type == "Whitespace") {
    DT_RETURN_IF_ERROR(OnlyFields(json, where, {}));
    stage.kind = Kind::kRegex;
    // Rust's \w has the joiners too.
    DT_ASSIGN_OR_RETURN(stage.regex, Regex::Compile(R"([\w\u200c\u200d]+|[^\w\u200c\u200d\s]+)"));
    stage.behavior = Behavior::kRemoved;
    stage.invert = true;
  } else if (type == "Punctuation") {
    DT_RETURN_IF_ERROR(OnlyFields(json, where, {"behavior"}));
    stage.char_class = kPunctuation;
    DT_ASSIGN_OR_RETURN(stage.behavior, BehaviorOf(json, where));
  } else {
    return absl::UnimplementedError(absl::StrFormat(
        "%s: the pre-tokenizer \"%s\" is not supported; supported are ByteLevel, Split, Metaspace, "
        "Digits, Punctuation, Whitespace, WhitespaceSplit, BertPreTokenizer and Sequence",
        where, type.substr(0, 100)));
  }
  stages_.push_back(std::move(stage));
  return absl::OkStatus();
}

bool PreTokenizer::IsStartMark(const Stage& stage) {
  return stage.kind == Kind::kMetaspace && stage.prepend == Prepend::kFirst;
}

bool PreTokenizer::marks_start() const {
  return std::any_of(stages_.begin(), stages_.end(), IsStartMark);
}

bool PreTokenizer::cuts_before_start_is_marked() const {
  return marks_start() && std::any_of(stages_.begin() + 1, stages_.end(), IsStartMark);
}

// The pieces of `text` between and in the matches of the stage's pattern.
absl::StatusOr<std::vector<PreTokenizer::Piece>> PreTokenizer::Matches(const Stage& stage,
                                                                       absl::string_view text) {
  std::vector<Piece> pieces;
  size_t done = 0;
  const auto add = [&](size_t begin, size_t end) {
    if (done < begin) {
      pieces.push_back({done, begin, stage.invert});
    }
    pieces.push_back({begin, end, !stage.invert});
    done = end;
  };
  if (stage.kind == Kind::kRegex) {
    DT_RETURN_IF_ERROR(stage.regex->ForEachMatch(text, add));
  } else {
    const CharClasses& classes = CharClasses::Get();
    for (size_t i = 0; i < text.size();) {
      const size_t begin = i;
      if ((classes.Of(NextCodePoint(text, &i)) & stage.char_class) != 0) {
        add(begin, i);
      }
    }
  }
  if (done < text.size()) {
    pieces.push_back({done, text.size(), stage.invert});
  }
  return pieces;
}

// The same as SplitDelimiterBehavior of `tokenizers`.
std::vector<PreTokenizer::Piece> PreTokenizer::Joined(std::vector<Piece> pieces,
                                                      Behavior behavior) {
  if (behavior == Behavior::kIsolated) {
    return pieces;
  }
  std::vector<Piece> joined;
  if (behavior == Behavior::kRemoved) {
    std::copy_if(pieces.begin(), pieces.end(), std::back_inserter(joined),
                 [](const Piece& piece) { return !piece.is_match; });
    return joined;
  }
  const bool is_backward = behavior == Behavior::kWithNext;
  if (is_backward) {
    std::reverse(pieces.begin(), pieces.end());
  }
  bool previous = false;
  for (const Piece& piece : pieces) {
    const bool joins = behavior == Behavior::kContiguous ? piece.is_match == previous
                                                         : piece.is_match && !previous;
    if (joins && !joined.empty()) {
      (is_backward ? joined.back().begin : joined.back().end) =
          is_backward ? piece.begin : piece.end;
    } else {
      joined.push_back(piece);
    }
    previous = piece.is_match;
  }
  if (is_backward) {
    std::reverse(joined.begin(), joined.end());
  }
  return joined;
}

absl::Status PreTokenizer::RunMetaspace(size_t index, absl::string_view text, bool is_start,
                                        Sink sink) const {
  const Stage& stage = stages_[index];
  std::string marked = absl::StrReplaceAll(text, {{" ", stage.mark}});
  const bool prepends =
      stage.prepend == Prepend::kAlways || (stage.prepend == Prepend::kFirst && is_start);
  if (prepends && !absl::StartsWith(marked, stage.mark)) {
    marked.insert(0, stage.mark);
  }
  if (!stage.split) {
    return Run(index + 1, marked, is_start, sink);
  }
  const absl::string_view all = marked;
  // A mark goes with what follows; of several in a row each but the last is a word.
  for (size_t begin = 0; begin < all.size();) {
    const size_t next = all.find(stage.mark, begin + 1);
    const size_t end = std::min(next, all.size());
    DT_RETURN_IF_ERROR(
        Run(index + 1, all.substr(begin, end - begin), is_start && begin == 0, sink));
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status PreTokenizer::RunSpaceMark(size_t index, absl::string_view text, bool is_start,
                                        Sink sink) const {
  const std::set<uint32_t>& never_after = stages_[index].never_after;
  size_t begin = 0;
  for (size_t at = text.find(kSpaceMark, 1); at != absl::string_view::npos;
       at = text.find(kSpaceMark, at + 1)) {
    size_t before = at - 1;
    while ((static_cast<uint8_t>(text[before]) & 0xc0) == 0x80) {
      --before;
    }
    if (never_after.count(NextCodePoint(text, &before)) == 0) {
      DT_RETURN_IF_ERROR(
          Run(index + 1, text.substr(begin, at - begin), is_start && begin == 0, sink));
      begin = at;
    }
  }
  return Run(index + 1, text.substr(begin), is_start && begin == 0, sink);
}

// Gives the words between spaces.
absl::Status PreTokenizer::RunWords(size_t index, absl::string_view text, bool is_start,
                                    Sink sink) const {
  const CharClasses& classes = CharClasses::Get();
  const uint8_t alone = stages_[index].isolates_punctuation ? kPunctuation : 0;
  size_t begin = 0;
  const auto end_word = [&](size_t end) {
    return begin == end
               ? absl::OkStatus()
               : Run(index + 1, text.substr(begin, end - begin), is_start && begin == 0, sink);
  };
  for (size_t i = 0; i < text.size();) {
    const size_t at = i;
    const uint8_t bits = classes.Of(NextCodePoint(text, &i));
    if ((bits & (kSpace | alone)) == 0) {
      continue;
    }
    DT_RETURN_IF_ERROR(end_word(at));
    begin = at;
    if ((bits & kSpace) == 0) {
      DT_RETURN_IF_ERROR(end_word(i));
    }
    begin = i;
  }
  return end_word(text.size());
}

absl::Status PreTokenizer::Run(size_t index, absl::string_view text, bool is_start,
                               Sink sink) const {
  if (text.empty()) {
    return absl::OkStatus();
  }
  if (index == stages_.size()) {
    sink(text);
    return absl::OkStatus();
  }
  const Stage& stage = stages_[index];
  if (stage.kind == Kind::kScanner) {
    const bool is_last = index + 1 == stages_.size();
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = stage.scanner->WordEnd(text, begin);
      const absl::string_view word = text.substr(begin, end - begin);
      if (is_last) {
        sink(word);
      } else {
        DT_RETURN_IF_ERROR(Run(index + 1, word, is_start && begin == 0, sink));
      }
      begin = end;
    }
    return absl::OkStatus();
  }
  if (stage.kind == Kind::kPrefixSpace) {
    return text[0] == ' ' ? Run(index + 1, text, is_start, sink)
                          : Run(index + 1, absl::StrCat(" ", text), is_start, sink);
  }
  if (stage.kind == Kind::kMetaspace) {
    return RunMetaspace(index, text, is_start, sink);
  }
  if (stage.kind == Kind::kWords) {
    return RunWords(index, text, is_start, sink);
  }
  if (stage.kind == Kind::kSpaceMark) {
    return RunSpaceMark(index, text, is_start, sink);
  }
  DT_ASSIGN_OR_RETURN(std::vector<Piece> pieces, Matches(stage, text));
  for (const Piece& piece : Joined(std::move(pieces), stage.behavior)) {
    DT_RETURN_IF_ERROR(Run(index + 1, text.substr(piece.begin, piece.end - piece.begin),
                           is_start && piece.begin == 0, sink));
  }
  return absl::OkStatus();
}

absl::Status PreTokenizer::ForEachWord(absl::string_view text, bool is_start, Sink sink) const {
  return Run(0, text, is_start, sink);
}

}  // namespace dtrain::plan
