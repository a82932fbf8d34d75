// The "normalizer" of a tokenizer.json: changes a text before it is cut into words. Immutable;
// thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"
#include "runtime/plan/tokenizer/regex.h"
#include "runtime/plan/tokenizer/unicode/unicode_normalization.h"

namespace dtrain::plan {

class Normalizer {
 public:
  Normalizer() = default;
  // Null gives one that changes nothing. Unimplemented: a type or field that is not known.
  static absl::StatusOr<Normalizer> FromJson(const Json& json);

  // By the account that `tokenizers` keeps of places: whether the first characters of some text are
  // left out (by Precompiled never), and whether several may come of the first one, each of which
  // stands at the start then.
  bool may_drop_start() const { return may_drop_start_; }
  bool may_part_start() const { return may_part_start_; }

  // `text` itself when nothing changes, else the content of `storage`. REQUIRES: `text` is UTF-8
  // and not in `storage`. Errors as of Regex::ForEachMatch.
  absl::StatusOr<absl::string_view> Apply(absl::string_view text, std::string* storage) const;

 private:
  enum class Kind { kForm, kPrepend, kReplace, kStrip, kMap };
  struct Step {
    Kind kind = Kind::kForm;
    NormalForm form = NormalForm::kNfc;
    std::string text;            // What is prepended, or stands for a match.
    std::string literal;         // What is replaced, unless `regex`.
    std::optional<Regex> regex;  // What is replaced.
    bool left = false;
    bool right = false;
    std::function<std::string(absl::string_view)> map;
  };

  absl::Status Add(const Json& json, const std::string& where, int depth);
  static absl::StatusOr<absl::string_view> ApplyStep(const Step& step, absl::string_view text,
                                                     std::string* storage);

  std::vector<Step> steps_;
  bool may_drop_start_ = false;
  bool may_part_start_ = false;
};

}  // namespace dtrain::plan
