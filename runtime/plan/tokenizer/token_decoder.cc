#include "runtime/plan/tokenizer/token_decoder.h"

#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "base/text/utf8.h"
#include "runtime/plan/tokenizer/json_fields.h"
#include "runtime/plan/tokenizer/unicode/byte_alphabet.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"

namespace dtrain::plan {
namespace {

constexpr size_t kDecoderStepsMax = 32;
constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";

// The byte of a token such as "<0x0A>".
std::optional<char> ByteOf(absl::string_view token) {
  uint32_t value = 0;
  if (token.size() == 6 && absl::StartsWith(token, "<0x") && token[5] == '>' &&
      absl::ascii_isxdigit(static_cast<unsigned char>(token[3])) &&
      absl::SimpleHexAtoi(token.substr(3, 2), &value)) {
    return static_cast<char>(value);
  }
  return std::nullopt;
}

// Tokens of bytes become text: all in a row together, or U+FFFD for each when they are no UTF-8.
void FallBack(std::vector<std::string>* tokens) {
  std::vector<std::string> made;
  std::string bytes;
  const auto flush = [&] {
    if (!bytes.empty() && IsUtf8(bytes)) {
      made.push_back(bytes);
    } else {
      made.insert(made.end(), bytes.size(), std::string(kReplacement));
    }
    bytes.clear();
  };
  for (std::string& token : *tokens) {
    if (const std::optional<char> byte = ByteOf(token); byte.has_value()) {
      bytes += *byte;
    } else {
      flush();
      made.push_back(std::move(token));
    }
  }
  flush();
  *tokens = std::move(made);
}

void JoinBytes(std::vector<std::string>* tokens) {
  std::string bytes;
  for (const std::string& token : *tokens) {
    const std::optional<std::string> written = BytesOfLetters(token);
    bytes += written.has_value() ? *written : token;
  }
  std::string storage;
  *tokens = {std::string(RepairedUtf8(bytes, &storage))};
}

std::string Stripped(absl::string_view token, absl::string_view character, uint32_t start,
                     uint32_t stop) {
  for (uint32_t i = 0; i < start && absl::StartsWith(token, character); ++i) {
    token.remove_prefix(character.size());
  }
  for (uint32_t i = 0; i < stop && absl::EndsWith(token, character); ++i) {
    token.remove_suffix(character.size());
  }
  return std::string(token);
}

std::string Replaced(const Regex& regex, absl::string_view token, const std::string& text) {
  std::string made;
  size_t done = 0;
  // A match that needs too much work ends the replacement; a token is too short for that.
  regex
      .ForEachMatch(token,
                    [&](size_t begin, size_t end) {
                      absl::StrAppend(&made, token.substr(done, begin - done), text);
                      done = end;
                    })
      .IgnoreError();
  absl::StrAppend(&made, token.substr(done));
  return made;
}

// One replacement after the other, as `tokenizers` does them in each token for itself.
void JoinPiece(absl::string_view prefix, bool is_first, bool cleans, std::string* token) {
  if (!is_first) {
    *token = absl::StartsWith(*token, prefix) ? token->substr(prefix.size()) : " " + *token;
  }
  if (!cleans) {
    return;
  }
  constexpr std::pair<const char*, const char*> kCleaned[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kCleaned) {
    *token = absl::StrReplaceAll(*token, {{from, to}});
  }
}

}  // namespace

TokenDecoder TokenDecoder::Bytes() {
  TokenDecoder decoder;
  decoder.steps_.emplace_back().kind = Kind::kBytes;
  return decoder;
}

absl::StatusOr<TokenDecoder> TokenDecoder::FromJson(const Json& json) {
  TokenDecoder decoder;
  if (!json.is_null()) {
    DT_RETURN_IF_ERROR(decoder.Add(json, "decoder", 0));
    if (decoder.steps_.empty()) {  // An empty sequence joins the tokens.
      decoder.steps_.emplace_back();
    }
  }
  return decoder;
}

absl::Status TokenDecoder::Add(const Json& json, const std::string& where, int depth) {
  DT_ASSIGN_OR_RETURN(const std::string type, TypeOf(json, where));
  if (type == "Sequence" && depth < 8) {
    DT_RETURN_IF_ERROR(OnlyFields(json, where, {"decoders"}));
    DT_ASSIGN_OR_RETURN(const Json* const parts, ArrayField(json, where, "decoders"));
    for (size_t i = 0; i < parts->size(); ++i) {
      DT_RETURN_IF_ERROR(Add((*parts)[i], absl::StrFormat("%s[%d]", where, i), depth + 1));
    }
    return absl::OkStatus();
  }
  Step step;
  if (type == "ByteLevel") {
    DT_RETURN_IF_ERROR(OnlyFields(json, where, {"add_prefix_space", "trim_offsets", "use_regex"}));
    step.kind = Kind::kBytes;
  } else if (type == "ByteFallback") {
    DT_RETURN_IF_ERROR(OnlyFields(json, where, {}));
    step.kind = Kind::kByteFallback;
  } else if (type == "Fuse") {
    DT_RETURN_IF_ERROR(OnlyFields(json, where, {}));
  } else if (type == "Strip") {
    DT_RETURN_IF_ERROR(OnlyFields(json, where, {"content", "start", "stop"}));
    step.kind = Kind::kStrip;
    DT_ASSIGN_OR_RETURN(step.text, StringField(json, where, "content"));
    DT_ASSIGN_OR_RETURN(step.start, CountField(json, where, "start"));
    DT_ASSIGN_OR_RETURN(step.stop, CountField(json, where, "stop"));
  } else if (type == "Replace") {
    DT_RETURN_IF_ERROR(OnlyFields(json, where, {"pattern", "content"}));
    step.kind = Kind::kReplace;
    DT_ASSIGN_OR_RETURN(step.text, StringField(json, where, "content"));
    DT_ASSIGN_OR_RETURN(const std::string pattern, PatternField(json, where));
    DT_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
    step.regex.push_back(std::move(regex));
  } else if (type == "Metaspace") {
    DT_RETURN_IF_ERROR(OnlyFields(
        json, where, {"replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"}));
    step.kind = Kind::kMetaspace;
    DT_ASSIGN_OR_RETURN(step.text, StringField(json, where, "replacement"));
    DT_ASSIGN_OR_RETURN(step.drops_first, BoolField(json, where, "add_prefix_space", true));
    step.drops_first = step.drops_first && json.value("prepend_scheme", Json()) != Json("never");
  } else if (type == "WordPiece") {
    DT_RETURN_IF_ERROR(OnlyFields(json, where, {"prefix", "cleanup"}));
    step.kind = Kind::kWordPiece;
    DT_ASSIGN_OR_RETURN(step.text, StringField(json, where, "prefix"));
    DT_ASSIGN_OR_RETURN(step.cleans, BoolField(json, where, "cleanup", true));
  } else {
    return absl::UnimplementedError(absl::StrFormat(
        "%s: the decoder \"%s\" is not supported; supported are ByteLevel, ByteFallback, Fuse, "
        "Strip, Replace, Metaspace, WordPiece and Sequence",
        where, type.substr(0, 100)));
  }
  if (steps_.size() == kDecoderStepsMax ||
      (step.text.empty() && (step.kind == Kind::kStrip || step.kind == Kind::kMetaspace))) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: a decoder has at most %d steps, and each replaces a character", where,
                        kDecoderStepsMax));
  }
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

void TokenDecoder::Apply(const Step& step, std::vector<std::string>* tokens) {
  switch (step.kind) {
    case Kind::kBytes:
      JoinBytes(tokens);
      return;
    case Kind::kByteFallback:
      FallBack(tokens);
      return;
    case Kind::kFuse:
      *tokens = {absl::StrJoin(*tokens, "")};
      return;
    case Kind::kStrip:
      for (std::string& token : *tokens) {
        token = Stripped(token, step.text, step.start, step.stop);
      }
      return;
    case Kind::kReplace:
      for (std::string& token : *tokens) {
        token = Replaced(step.regex[0], token, step.text);
      }
      return;
    case Kind::kMetaspace:
      for (size_t i = 0; i < tokens->size(); ++i) {
        const char* const space = i == 0 && step.drops_first ? "" : " ";
        (*tokens)[i] = absl::StrReplaceAll((*tokens)[i], {{step.text, space}});
      }
      return;
    case Kind::kWordPiece:
      for (size_t i = 0; i < tokens->size(); ++i) {
        JoinPiece(step.text, i == 0, step.cleans, &(*tokens)[i]);
      }
      return;
  }
}

std::string TokenDecoder::Decode(std::vector<std::string> tokens) const {
  for (const Step& step : steps_) {
    Apply(step, &tokens);
  }
  return absl::StrJoin(tokens, steps_.empty() ? " " : "");
}

}  // namespace dtrain::plan
