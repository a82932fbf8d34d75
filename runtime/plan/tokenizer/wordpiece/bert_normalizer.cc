#include "runtime/plan/tokenizer/wordpiece/bert_normalizer.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "runtime/plan/tokenizer/json_fields.h"
#include "runtime/plan/tokenizer/unicode/char_classes.h"
#include "runtime/plan/tokenizer/unicode/character_rules.h"
#include "runtime/plan/tokenizer/unicode/unicode_normalization.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"

namespace dtrain::plan {
namespace {

// Calls `append` with each character's code point, bytes and `made`, to which printable ASCII is
// appended without a call, in lower case if `lowercase`.
template <typename Append>
std::string Changed(absl::string_view text, bool lowercase, Append append) {
  std::string made;
  made.reserve(text.size() + text.size() / 8);
  for (size_t i = 0; i < text.size();) {
    const char byte = text[i];
    if (byte >= ' ' && byte < 0x7f) {
      const bool is_capital = lowercase && byte >= 'A' && byte <= 'Z';
      made.push_back(is_capital ? static_cast<char>(byte + ('a' - 'A')) : byte);
      ++i;
      continue;
    }
    const size_t begin = i;
    const uint32_t c = NextCodePoint(text, &i);
    append(c, text.substr(begin, i - begin), &made);
  }
  return made;
}

}  // namespace

absl::StatusOr<BertNormalizer> BertNormalizer::FromJson(const Json& json,
                                                        const std::string& where) {
  DT_RETURN_IF_ERROR(OnlyFields(
      json, where, {"clean_text", "handle_chinese_chars", "strip_accents", "lowercase"}));
  BertNormalizer made;
  DT_ASSIGN_OR_RETURN(made.clean_text, BoolField(json, where, "clean_text", true));
  DT_ASSIGN_OR_RETURN(made.handle_chinese_chars,
                      BoolField(json, where, "handle_chinese_chars", true));
  DT_ASSIGN_OR_RETURN(made.lowercase, BoolField(json, where, "lowercase", true));
  DT_ASSIGN_OR_RETURN(made.strip_accents, BoolField(json, where, "strip_accents", made.lowercase));
  return made;
}

std::string BertNormalizer::Cleaned(absl::string_view text) const {
  return Changed(text, false, [&](uint32_t c, absl::string_view bytes, std::string* made) {
    const uint8_t rules = RulesOf(c);
    if (clean_text && (CharClasses::Get().Of(c) & kSpace) != 0 &&
        ((rules & kDropped) == 0 || c == '\t' || c == '\n' || c == '\r')) {
      made->push_back(' ');
    } else if (handle_chinese_chars && (rules & kChinese) != 0) {
      absl::StrAppend(made, " ", bytes, " ");
    } else if (!clean_text || (rules & kDropped) == 0) {
      made->append(bytes.data(), bytes.size());
    }
  });
}

std::string BertNormalizer::Apply(absl::string_view text) const {
  std::string made = clean_text || handle_chinese_chars ? Cleaned(text) : std::string(text);
  std::string storage;
  const absl::string_view decomposed =
      strip_accents ? Normalized(NormalForm::kNfd, made, &storage) : absl::string_view(made);
  if (!strip_accents && !lowercase) {
    return made;
  }
  return Changed(decomposed, lowercase, [&](uint32_t c, absl::string_view bytes, std::string* out) {
    const uint8_t rules = RulesOf(c);
    if (strip_accents && (rules & kAccent) != 0) {
      return;
    }
    if (lowercase && (rules & kCapital) != 0) {
      AppendLower(c, out);
    } else {
      out->append(bytes.data(), bytes.size());
    }
  });
}

}  // namespace dtrain::plan
