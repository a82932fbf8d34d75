#include "runtime/plan/tokenizer/ranks/byte_ranks.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "runtime/plan/stable_hash.h"
#include "runtime/plan/tokenizer/unicode/byte_alphabet.h"

namespace dtrain::plan {
namespace {

// Every way to make a token of two others, in the order of the tokens' ranks.
std::vector<BpeMerge> MergesOf(const ByteRanks& ranks,
                               const absl::flat_hash_map<std::string, uint32_t>& ids) {
  std::vector<BpeMerge> merges;
  for (size_t rank = 0; rank < ranks.tokens.size(); ++rank) {
    const absl::string_view token = ranks.tokens[rank];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut));
      const auto right = left == ids.end() ? ids.end() : ids.find(token.substr(cut));
      if (right != ids.end()) {
        merges.push_back(
            {left->second, right->second, ranks.first_id + static_cast<uint32_t>(rank)});
      }
    }
  }
  return merges;
}

}  // namespace

absl::Status FillByteRanks(const ByteRanks& ranks, PipelineTokenizerParts* parts) {
  StableHash first;
  StableHash second;
  first.Add(ranks.rules);
  second.Add(1).Add(ranks.rules);
  parts->tokens.resize(std::max<size_t>(parts->tokens.size(), ranks.first_id));
  for (size_t rank = 0; rank < ranks.tokens.size(); ++rank) {
    const std::string& token = ranks.tokens[rank];
    const uint32_t id = ranks.first_id + static_cast<uint32_t>(rank);
    first.Add(token);
    second.Add(token);
    parts->tokens.push_back(LettersOfBytes(token));
    if (!token.empty() && !parts->bpe.whole_words.emplace(token, id).second) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the token of rank %d has the bytes of another rank", rank));
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
  parts->decoder = TokenDecoder::Bytes();
  return absl::OkStatus();
}

void AddSpecialTokens(const std::vector<std::pair<std::string, uint32_t>>& specials,
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

}  // namespace dtrain::plan
