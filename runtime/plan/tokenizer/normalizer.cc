#include "runtime/plan/tokenizer/normalizer.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/tokenizer/json_fields.h"
#include "runtime/plan/tokenizer/unicode/char_classes.h"
#include "runtime/plan/tokenizer/unicode/character_rules.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"
#include "runtime/plan/tokenizer/unigram/precompiled_map.h"
#include "runtime/plan/tokenizer/wordpiece/bert_normalizer.h"

namespace dtrain::plan {
namespace {

constexpr size_t kStepsMax = 64;

std::optional<NormalForm> FormOf(absl::string_view type) {
  return type == "NFC"    ? std::optional(NormalForm::kNfc)
         : type == "NFD"  ? std::optional(NormalForm::kNfd)
         : type == "NFKC" ? std::optional(NormalForm::kNfkc)
         : type == "NFKD" ? std::optional(NormalForm::kNfkd)
                          : std::nullopt;
}

bool IsOneCharacter(absl::string_view text) {
  return !text.empty() && Utf8Length(text[0]) == text.size();
}

absl::string_view Stripped(absl::string_view text, bool left, bool right) {
  const CharClasses& classes = CharClasses::Get();
  size_t begin = 0;
  size_t end = 0;  // Behind the last character that is no space.
  bool inside = !left;
  for (size_t i = 0; i < text.size();) {
    const size_t at = i;
    const bool is_space = (classes.Of(NextCodePoint(text, &i)) & kSpace) != 0;
    if (!is_space && !inside) {
      inside = true;
      begin = at;
    }
    end = is_space ? end : i;
  }
  if (!inside) {
    return "";
  }
  end = right ? std::max(begin, end) : text.size();
  return text.substr(begin, end - begin);
}

}  // namespace

absl::StatusOr<Normalizer> Normalizer::FromJson(const Json& json) {
  Normalizer normalizer;
  if (!json.is_null()) {
    DT_RETURN_IF_ERROR(normalizer.Add(json, "normalizer", 0));
  }
  return normalizer;
}

absl::Status Normalizer::Add(const Json& json, const std::string& where, int depth) {
  DT_ASSIGN_OR_RETURN(const std::string type, TypeOf(json, where));
  if (type == "Sequence" && depth < 8) {
    DT_RETURN_IF_ERROR(OnlyFields(json, where, {"normalizers"}));
    DT_ASSIGN_OR_RETURN(const Json* const parts, ArrayField(json, where, "normalizers"));
    for (size_t i = 0; i < parts->size(); ++i) {
      DT_RETURN_IF_ERROR(Add((*parts)[i], absl::StrFormat("%s[%d]", where, i), depth + 1));
    }
    return absl::OkStatus();
  }
  Step step;
  if (const std::optional<NormalForm> form = FormOf(type); form.has_value()) {
    DT_RETURN_IF_ERROR(OnlyFields(json, where, {}));
    step.form = *form;
  } else if (type == "Prepend") {
    DT_RETURN_IF_ERROR(OnlyFields(json, where, {"prepend"}));
    step.kind = Kind::kPrepend;
    DT_ASSIGN_OR_RETURN(step.text, StringField(json, where, "prepend"));
  } else if (type == "Replace") {
    DT_RETURN_IF_ERROR(OnlyFields(json, where, {"pattern", "content"}));
    step.kind = Kind::kReplace;
    DT_ASSIGN_OR_RETURN(step.text, StringField(json, where, "content"));
    DT_ASSIGN_OR_RETURN(const std::string pattern, PatternField(json, where));
    if (json["pattern"].contains("String")) {
      step.literal = json["pattern"]["String"].get<std::string>();
    }
    DT_ASSIGN_OR_RETURN(step.regex, Regex::Compile(pattern));
  } else if (type == "Strip") {
    DT_RETURN_IF_ERROR(OnlyFields(json, where, {"strip_left", "strip_right"}));
    step.kind = Kind::kStrip;
    DT_ASSIGN_OR_RETURN(step.left, BoolField(json, where, "strip_left", false));
    DT_ASSIGN_OR_RETURN(step.right, BoolField(json, where, "strip_right", false));
  } else if (type == "Lowercase" || type == "StripAccents") {
    DT_RETURN_IF_ERROR(OnlyFields(json, where, {}));
    step.kind = Kind::kMap;
    step.map = type == "Lowercase" ? Lowercased : WithoutMarks;
  } else if (type == "BertNormalizer") {
    step.kind = Kind::kMap;
    DT_ASSIGN_OR_RETURN(const BertNormalizer bert, BertNormalizer::FromJson(json, where));
    step.map = [bert](absl::string_view text) { return bert.Apply(text); };
  } else if (type == "Precompiled") {
    step.kind = Kind::kMap;
    DT_ASSIGN_OR_RETURN(const PrecompiledMap map, PrecompiledMap::FromJson(json, where));
    step.map = [map](absl::string_view text) { return map.Apply(text); };
  } else {
    return absl::UnimplementedError(absl::StrFormat(
        "%s: the normalizer \"%s\" is not supported; supported are NFC, NFD, NFKC, NFKD, Prepend, "
        "Replace, Strip, Lowercase, StripAccents, BertNormalizer, Precompiled and Sequence",
        where, type.substr(0, 100)));
  }
  if (steps_.size() == kStepsMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: more than %d normalizers", where, kStepsMax));
  }
  may_drop_start_ = may_drop_start_ || (type == "Strip" && step.left) || type == "StripAccents" ||
                    type == "BertNormalizer" || (type == "Replace" && step.text.empty());
  const bool makes_one = type == "Strip" || (type == "Replace" && IsOneCharacter(step.text));
  may_part_start_ = may_part_start_ || !makes_one;
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::StatusOr<absl::string_view> Normalizer::ApplyStep(const Step& step, absl::string_view text,
                                                        std::string* storage) {
  if (step.kind == Kind::kForm) {
    return Normalized(step.form, text, storage);
  }
  if (step.kind == Kind::kStrip) {
    return Stripped(text, step.left, step.right);
  }
  if (step.kind == Kind::kMap) {
    *storage = step.map(text);
    return absl::string_view(*storage);
  }
  storage->clear();
  if (step.kind == Kind::kPrepend) {
    if (text.empty()) {
      return text;
    }
    absl::StrAppend(storage, step.text, text);
    return absl::string_view(*storage);
  }
  size_t done = 0;
  if (!step.literal.empty()) {
    for (size_t at = text.find(step.literal); at != absl::string_view::npos;
         at = text.find(step.literal, done)) {
      absl::StrAppend(storage, text.substr(done, at - done), step.text);
      done = at + step.literal.size();
    }
  } else {
    DT_RETURN_IF_ERROR(step.regex->ForEachMatch(text, [&](size_t begin, size_t end) {
      absl::StrAppend(storage, text.substr(done, begin - done), step.text);
      done = end;
    }));
  }
  if (done == 0) {
    return text;
  }
  absl::StrAppend(storage, text.substr(done));
  return absl::string_view(*storage);
}

absl::StatusOr<absl::string_view> Normalizer::Apply(absl::string_view text,
                                                    std::string* storage) const {
  std::string other;
  for (const Step& step : steps_) {
    DT_ASSIGN_OR_RETURN(const absl::string_view made, ApplyStep(step, text, &other));
    if (made.data() == other.data()) {
      std::swap(*storage, other);
      text = *storage;
    } else {
      text = made;  // A part of the text before.
    }
  }
  return text;
}

}  // namespace dtrain::plan
