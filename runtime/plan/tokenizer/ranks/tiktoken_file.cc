#include "runtime/plan/tokenizer/ranks/tiktoken_file.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "runtime/plan/tokenizer/pipeline_tokenizer.h"
#include "runtime/plan/tokenizer/ranks/byte_ranks.h"
#include "runtime/plan/tokenizer/ranks/tiktoken_published.h"
#include "runtime/plan/tokenizer/word_scanner.h"

namespace dtrain::plan {
namespace {

constexpr size_t kRanksMax = 1 << 22;

// The bytes by rank; "" for gaps.
absl::StatusOr<std::vector<std::string>> ReadRanks(absl::string_view text) {
  std::vector<std::string> ranks;
  int64_t line_number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    if (line.empty() || line == "\r") {
      continue;
    }
    const std::vector<absl::string_view> parts =
        absl::StrSplit(line, absl::ByAnyChar(" \r"), absl::SkipEmpty());
    std::string bytes;
    uint32_t rank = 0;
    if (parts.size() != 2 || !absl::Base64Unescape(parts[0], &bytes) || bytes.empty() ||
        bytes.size() > kRankBytesMax || !absl::SimpleAtoi(parts[1], &rank) || rank >= kRanksMax) {
      return absl::InvalidArgumentError(
          absl::StrFormat("line %d is not base64 of 1 to %d bytes, a space and a rank below %d",
                          line_number, kRankBytesMax, kRanksMax));
    }
    // A gap of more than a few ranks is damage; memory follows the number of lines.
    if (rank > static_cast<uint64_t>(2 * line_number + 65536)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "line %d has the rank %d, far beyond the lines before it", line_number, rank));
    }
    if (rank >= ranks.size()) {
      ranks.resize(rank + 1);
    }
    if (!ranks[rank].empty()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("line %d has the rank %d of another line", line_number, rank));
    }
    ranks[rank] = std::move(bytes);
  }
  return ranks;
}

absl::StatusOr<std::string> PatternOf(const PublishedRanks* published, size_t count,
                                      const TokenizerOptions& options) {
  if (!options.pattern.empty()) {
    if (!WordScanner::ForName(options.pattern).has_value()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the pattern \"%s\" is unknown; known are %s", options.pattern,
                          absl::StrJoin(WordScanner::Names(), ", ")));
    }
    return options.pattern;
  }
  if (published != nullptr) {
    return std::string(published->pattern);
  }
  return absl::UnimplementedError(absl::StrFormat(
      "a tiktoken file of %d ranks is none of the published ones (r50k_base, p50k_base, "
      "cl100k_base, o200k_base, Llama 3, Llama 4 and Qwen), and the file does not say how text is "
      "cut; use the model's tokenizer.json",
      count));
}

// Adds what the file itself does not say: it stands in the programs that read the published file.
absl::Status AddPublished(const PublishedRanks& published, PipelineTokenizerParts* parts) {
  const std::vector<std::pair<std::string, uint32_t>> specials = published.specials();
  AddSpecialTokens(specials, parts);
  for (const auto& [text, id] : specials) {
    if (text == published.begin) {
      parts->before.push_back(id);
    }
  }
  if (published.normal_form[0] != '\0') {
    DT_ASSIGN_OR_RETURN(parts->normalizer,
                        Normalizer::FromJson(Json{{"type", published.normal_form}}));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> FromText(absl::string_view text,
                                                    const TokenizerOptions& options) {
  ByteRanks ranks;
  DT_ASSIGN_OR_RETURN(ranks.tokens, ReadRanks(text));
  const auto count =
      static_cast<size_t>(std::count_if(ranks.tokens.begin(), ranks.tokens.end(),
                                        [](const std::string& token) { return !token.empty(); }));
  const PublishedRanks* const published = FindPublished(count);
  DT_ASSIGN_OR_RETURN(const std::string pattern, PatternOf(published, count, options));
  ranks.rules = absl::StrCat(pattern, published != nullptr ? published->normal_form : "");
  PipelineTokenizerParts parts;
  DT_RETURN_IF_ERROR(FillByteRanks(ranks, &parts));
  if (published != nullptr) {
    DT_RETURN_IF_ERROR(AddPublished(*published, &parts));
  }
  parts.pre_tokenizer = PreTokenizer::OfScanner(*WordScanner::ForName(pattern));
  parts.kind = "tiktoken";
  DT_ASSIGN_OR_RETURN(std::unique_ptr<PipelineTokenizer> tokenizer,
                      PipelineTokenizer::Create(std::move(parts)));
  if (published != nullptr) {
    tokenizer->SetEnds(tokenizer->TokenId(published->begin), tokenizer->TokenId(published->end));
  }
  return tokenizer;
}

}  // namespace

bool LooksLikeTiktoken(absl::string_view text) {
  const absl::string_view line = text.substr(0, text.find('\n'));
  std::string bytes;
  uint32_t rank = 0;
  const std::vector<absl::string_view> parts = absl::StrSplit(line, ' ');
  return line.size() < 2 * kRankBytesMax && parts.size() == 2 &&
         absl::Base64Unescape(parts[0], &bytes) && absl::SimpleAtoi(parts[1], &rank);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromTiktoken(absl::string_view text,
                                                                 const std::string& name,
                                                                 const TokenizerOptions& options) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> made = FromText(text, options);
  return made.ok() ? std::move(made) : Annotate(made.status(), name);
}

}  // namespace dtrain::plan
