#include "runtime/plan/tokenizer/tiktoken_file.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "runtime/plan/stable_hash.h"
#include "runtime/plan/tokenizer/pipeline_tokenizer.h"
#include "runtime/plan/tokenizer/tiktoken_published.h"
#include "runtime/plan/tokenizer/unicode/byte_alphabet.h"
#include "runtime/plan/tokenizer/word_scanner.h"

namespace dtrain::plan {
namespace {

constexpr size_t kRanksMax = 1 << 22;
constexpr size_t kTokenBytesMax = 1 << 10;

using Ranks = std::vector<std::string>;  // The bytes by rank; "" for gaps.

absl::StatusOr<Ranks> ReadRanks(absl::string_view text) {
  Ranks ranks;
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
        bytes.size() > kTokenBytesMax || !absl::SimpleAtoi(parts[1], &rank) || rank >= kRanksMax) {
      return absl::InvalidArgumentError(
          absl::StrFormat("line %d is not base64 of 1 to %d bytes, a space and a rank below %d",
                          line_number, kTokenBytesMax, kRanksMax));
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

// Every way to make a token of two others, in the order of the tokens' ranks.
std::vector<BpeMerge> MergesOf(const Ranks& ranks,
                               const absl::flat_hash_map<std::string, uint32_t>& ids) {
  std::vector<BpeMerge> merges;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const absl::string_view token = ranks[rank];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut));
      const auto right = left == ids.end() ? ids.end() : ids.find(token.substr(cut));
      if (right != ids.end()) {
        merges.push_back({left->second, right->second, static_cast<uint32_t>(rank)});
      }
    }
  }
  return merges;
}

absl::StatusOr<std::string> PatternOf(size_t count, const TokenizerOptions& options) {
  const std::string known = absl::StrJoin(WordScanner::Names(), ", ");
  if (!options.pattern.empty()) {
    if (!WordScanner::ForName(options.pattern).has_value()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the pattern \"%s\" is unknown; known are %s", options.pattern, known));
    }
    return options.pattern;
  }
  if (const PublishedRanks* published = FindPublished(count); published != nullptr) {
    return std::string(published->pattern);
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "a tiktoken file of %d ranks is none of the published ones, and the file does not say how "
      "text is cut; give the pattern: %s",
      count, known));
}

// Tokens, merges and identity of the ranks.
absl::Status FillRanks(const Ranks& ranks, const std::string& pattern,
                       PipelineTokenizerParts* parts) {
  StableHash first;
  StableHash second;
  first.Add(pattern);
  second.Add(1).Add(pattern);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    first.Add(ranks[rank]);
    second.Add(ranks[rank]);
    parts->tokens.push_back(LettersOfBytes(ranks[rank]));
    if (!ranks[rank].empty() &&
        !parts->bpe.whole_words.emplace(ranks[rank], static_cast<uint32_t>(rank)).second) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the token of rank %d stands in another line too", rank));
    }
  }
  parts->identity = absl::StrFormat("%016x%016x", first.value(), second.value());
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto found = parts->bpe.whole_words.find(std::string(1, static_cast<char>(byte)));
    if (found == parts->bpe.whole_words.end()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the byte %d has no token; a vocabulary of bytes has all 256", byte));
    }
    parts->bpe.byte_ids[byte] = found->second;
  }
  parts->bpe.bytes_first = true;
  parts->bpe.merges = MergesOf(ranks, parts->bpe.whole_words);
  return absl::OkStatus();
}

void AddSpecials(const std::vector<std::pair<std::string, uint32_t>>& specials,
                 PipelineTokenizerParts* parts) {
  for (const auto& [text, id] : specials) {
    if (id >= parts->tokens.size()) {
      parts->tokens.resize(id + 1);
    }
    parts->tokens[id] = text;
    AddedToken token;
    token.content = text;
    token.id = id;
    token.special = true;
    parts->added.push_back(std::move(token));
  }
}

absl::StatusOr<std::unique_ptr<Tokenizer>> FromText(absl::string_view text,
                                                    const TokenizerOptions& options) {
  DT_ASSIGN_OR_RETURN(const Ranks ranks, ReadRanks(text));
  const auto count = static_cast<size_t>(std::count_if(
      ranks.begin(), ranks.end(), [](const std::string& token) { return !token.empty(); }));
  DT_ASSIGN_OR_RETURN(const std::string pattern, PatternOf(count, options));
  PipelineTokenizerParts parts;
  DT_RETURN_IF_ERROR(FillRanks(ranks, pattern, &parts));
  const PublishedRanks* const published = FindPublished(count);
  if (published != nullptr) {
    AddSpecials(published->specials(), &parts);
  }
  parts.pre_tokenizer = PreTokenizer::OfScanner(*WordScanner::ForName(pattern));
  parts.decoder = TokenDecoder::Bytes();
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
  return line.size() < 2 * kTokenBytesMax && parts.size() == 2 &&
         absl::Base64Unescape(parts[0], &bytes) && absl::SimpleAtoi(parts[1], &rank);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromTiktoken(absl::string_view text,
                                                                 const std::string& name,
                                                                 const TokenizerOptions& options) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> made = FromText(text, options);
  return made.ok() ? std::move(made) : Annotate(made.status(), name);
}

}  // namespace dtrain::plan
