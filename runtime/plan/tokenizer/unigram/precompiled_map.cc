#include "runtime/plan/tokenizer/unigram/precompiled_map.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "runtime/plan/tokenizer/json_fields.h"
#include "runtime/plan/tokenizer/unicode/unicode_additions.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"

namespace dtrain::plan {
namespace {

constexpr size_t kMappedBytesMax = 5;  // A longer grapheme is mapped by its characters.

// Marks that Unicode 16 and 17 added: `tokenizers` cuts graphemes by Unicode 17, utf8proc by 15.
constexpr CodePointRange kNewMarks[] = {
    {0x897, 0x897},     {0x1acf, 0x1add},   {0x1ae0, 0x1aeb},   {0x10d69, 0x10d6d},
    {0x10efa, 0x10efc}, {0x113b8, 0x113c0}, {0x113c2, 0x113c2}, {0x113c5, 0x113c5},
    {0x113c7, 0x113ca}, {0x113cc, 0x113d0}, {0x113d2, 0x113d2}, {0x113e1, 0x113e2},
    {0x11b60, 0x11b67}, {0x11f5a, 0x11f5a}, {0x1611e, 0x1612f}, {0x1e5ee, 0x1e5ef},
    {0x1e6e3, 0x1e6e3}, {0x1e6e6, 0x1e6e6}, {0x1e6ee, 0x1e6ef}, {0x1e6f5, 0x1e6f5}};

// A character that utf8proc treats in graphemes as Unicode 17 treats `c`.
utf8proc_int32_t InGrapheme(uint32_t c) {
  if (c == 0x113d1) {
    return 0x600;  // A sign that belongs to what follows.
  }
  if (c == 0x11a3a) {
    return 'a';  // Is no such sign any more.
  }
  const bool is_new_mark =
      c >= kNewMarks[0].first &&
      std::any_of(std::begin(kNewMarks), std::end(kNewMarks),
                  [c](const CodePointRange& range) { return range.first <= c && c <= range.last; });
  return is_new_mark ? 0x301 : static_cast<utf8proc_int32_t>(c);
}

size_t GraphemeEnd(absl::string_view text, size_t begin) {
  utf8proc_int32_t state = 0;
  size_t end = begin;
  utf8proc_int32_t previous = InGrapheme(NextCodePoint(text, &end));
  while (end < text.size()) {
    size_t next = end;
    const utf8proc_int32_t c = InGrapheme(NextCodePoint(text, &next));
    if (utf8proc_grapheme_break_stateful(previous, c, &state)) {
      break;
    }
    previous = c;
    end = next;
  }
  return end;
}

}  // namespace

absl::StatusOr<PrecompiledMap> PrecompiledMap::FromJson(const Json& json,
                                                        const std::string& where) {
  DT_RETURN_IF_ERROR(OnlyFields(json, where, {"precompiled_charsmap"}));
  DT_ASSIGN_OR_RETURN(const std::string encoded, StringField(json, where, "precompiled_charsmap"));
  SentencePieceProto proto;
  if (!absl::Base64Unescape(encoded, &proto.charsmap)) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": \"precompiled_charsmap\" is not written in base64"));
  }
  std::optional<SentencePieceNormalizer> map = SentencePieceNormalizer::Create(proto);
  if (!map.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": \"precompiled_charsmap\" is damaged; copy the file again"));
  }
  return PrecompiledMap(*std::move(map));
}

void PrecompiledMap::AppendMapped(absl::string_view grapheme, std::string* out) const {
  if (grapheme.size() <= kMappedBytesMax) {
    if (const auto result = map_.ShortestMatch(grapheme); result.has_value()) {
      out->append(result->data(), result->size());
      return;
    }
  }
  for (size_t i = 0; i < grapheme.size();) {
    const absl::string_view character = grapheme.substr(i, Utf8Length(grapheme[i]));
    const absl::string_view result = map_.ShortestMatch(character).value_or(character);
    out->append(result.data(), result.size());
    i += character.size();
  }
}

std::string PrecompiledMap::Apply(absl::string_view text) const {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<uint8_t>(text[i]);
    const bool is_next_ascii = i + 1 == text.size() || static_cast<uint8_t>(text[i + 1]) < 128;
    // A carriage return joins a line feed behind it.
    if (byte < 128 && byte != '\r' && is_next_ascii && map_.IsPlain(byte)) {
      out.push_back(text[i++]);
      continue;
    }
    const size_t end = GraphemeEnd(text, i);
    AppendMapped(text.substr(i, end - i), &out);
    i = end;
  }
  return out;
}

}  // namespace dtrain::plan
