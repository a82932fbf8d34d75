#include "runtime/plan/tokenizer/ranks/tekken_file.h"

#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/tokenizer/json_fields.h"
#include "runtime/plan/tokenizer/pipeline_tokenizer.h"
#include "runtime/plan/tokenizer/ranks/byte_ranks.h"

namespace dtrain::plan {
namespace {

constexpr uint32_t kSpecialTokensMax = 1 << 16;

// The first special tokens of files that do not list them.
constexpr const char* kUnlisted[] = {"<unk>",
                                     "<s>",
                                     "</s>",
                                     "[INST]",
                                     "[/INST]",
                                     "[AVAILABLE_TOOLS]",
                                     "[/AVAILABLE_TOOLS]",
                                     "[TOOL_RESULTS]",
                                     "[/TOOL_RESULTS]",
                                     "[TOOL_CALLS]",
                                     "[IMG]",
                                     "<pad>",
                                     "[IMG_BREAK]",
                                     "[IMG_END]",
                                     "[PREFIX]",
                                     "[MIDDLE]",
                                     "[SUFFIX]",
                                     "[SYSTEM_PROMPT]",
                                     "[/SYSTEM_PROMPT]",
                                     "[TOOL_CONTENT]"};

// The bytes of the first `count` rows, which stand in the order of their ranks.
absl::StatusOr<std::vector<std::string>> TokensOf(const Json& rows, size_t count) {
  std::vector<std::string> tokens;
  for (size_t rank = 0; rank < count; ++rank) {
    const std::string where = absl::StrFormat("vocab[%d]", rank);
    DT_ASSIGN_OR_RETURN(const uint32_t named, CountField(rows[rank], where, "rank"));
    DT_ASSIGN_OR_RETURN(const std::string text, StringField(rows[rank], where, "token_bytes"));
    std::string bytes;
    if (named != rank || !absl::Base64Unescape(text, &bytes) || bytes.empty() ||
        bytes.size() > kRankBytesMax) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s has the rank %d and the token_bytes \"%s\"; it must have the rank %d and base64 of 1 "
          "to %d bytes",
          where, named, text.substr(0, 100), rank, kRankBytesMax));
    }
    tokens.push_back(std::move(bytes));
  }
  return tokens;
}

// The special tokens with the ids 0 to `count` - 1; those that nothing names have a number.
absl::StatusOr<std::vector<std::string>> SpecialsOf(const Json& document, uint32_t count) {
  std::vector<std::string> texts(count);
  if (!document.contains("special_tokens") || document["special_tokens"].is_null()) {
    for (uint32_t id = 0; id < count && id < std::size(kUnlisted); ++id) {
      texts[id] = kUnlisted[id];
    }
  } else {
    DT_ASSIGN_OR_RETURN(const Json* const rows,
                        ArrayField(document, "the document", "special_tokens"));
    for (size_t i = 0; i < rows->size(); ++i) {
      const std::string where = absl::StrFormat("special_tokens[%d]", i);
      DT_ASSIGN_OR_RETURN(const uint32_t id, CountField((*rows)[i], where, "rank"));
      DT_ASSIGN_OR_RETURN(std::string text, StringField((*rows)[i], where, "token_str"));
      if (id >= count || !texts[id].empty() || text.empty()) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s has the rank %d and the text \"%s\"; ranks are below %d, each once, and texts are "
            "not empty",
            where, id, text.substr(0, 100), count));
      }
      texts[id] = std::move(text);
    }
  }
  std::set<std::string> known;
  for (uint32_t id = 0; id < count; ++id) {
    if (texts[id].empty()) {
      texts[id] = absl::StrFormat("<SPECIAL_%d>", id);
    }
    if (!known.insert(texts[id]).second) {
      return absl::InvalidArgumentError(
          absl::StrFormat("special_tokens has the text \"%s\" twice", texts[id].substr(0, 100)));
    }
  }
  return texts;
}

absl::StatusOr<PreTokenizer> CutsBy(const std::string& pattern) {
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", "Removed"},
                      {"invert", true}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return PreTokenizer::FromJson(
      {{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}});
}

}  // namespace

bool IsTekken(const Json& document) {
  return document.is_object() && document.contains("config") && document.contains("vocab") &&
         !document.contains("model");
}

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromTekken(const Json& document) {
  DT_RETURN_IF_ERROR(
      OnlyFields(document, "the document",
                 {"config", "vocab", "special_tokens", "version", "image", "multimodal", "audio"}));
  const Json& config = document["config"];
  DT_RETURN_IF_ERROR(OnlyFields(config, "config",
                                {"pattern", "num_vocab_tokens", "default_vocab_size",
                                 "default_num_special_tokens", "version"}));
  DT_ASSIGN_OR_RETURN(const std::string pattern, StringField(config, "config", "pattern"));
  DT_ASSIGN_OR_RETURN(const uint32_t size, CountField(config, "config", "default_vocab_size"));
  DT_ASSIGN_OR_RETURN(const uint32_t special_count,
                      CountField(config, "config", "default_num_special_tokens"));
  DT_ASSIGN_OR_RETURN(const Json* const vocab, ArrayField(document, "the document", "vocab"));
  if (special_count > kSpecialTokensMax || size < special_count ||
      size - special_count > vocab->size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "config: default_vocab_size is %d, beside %d special tokens (at most %d) and %d rows of "
        "vocab; it must be at least the first number, and at most both together",
        size, special_count, kSpecialTokensMax, vocab->size()));
  }
  ByteRanks ranks{
      .tokens = {}, .first_id = special_count, .rules = absl::StrCat(pattern, " ", special_count)};
  DT_ASSIGN_OR_RETURN(ranks.tokens, TokensOf(*vocab, size - special_count));
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> texts, SpecialsOf(document, special_count));
  std::vector<std::pair<std::string, uint32_t>> specials;
  std::optional<uint32_t> begin;
  std::optional<uint32_t> end;
  for (uint32_t id = 0; id < special_count; ++id) {
    const std::string& text = texts[id];
    absl::StrAppend(&ranks.rules, " ", text);
    specials.emplace_back(text, id);
    begin = text == "<s>" ? id : begin;
    end = text == "</s>" ? id : end;
  }
  PipelineTokenizerParts parts;
  parts.kind = "tekken";
  DT_RETURN_IF_ERROR(FillByteRanks(ranks, &parts));
  AddSpecialTokens(specials, &parts);
  if (begin.has_value()) {
    parts.before.push_back(*begin);
  }
  DT_ASSIGN_OR_RETURN(parts.pre_tokenizer, CutsBy(pattern));
  DT_ASSIGN_OR_RETURN(std::unique_ptr<PipelineTokenizer> tokenizer,
                      PipelineTokenizer::Create(std::move(parts)));
  tokenizer->SetEnds(begin, end);
  return tokenizer;
}

}  // namespace dtrain::plan
