// A vocabulary of bytes by rank, as tiktoken's files and Mistral's tekken.json hold it. Two tokens
// are merged where their bytes together are a token, the one of the lowest rank first. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "runtime/plan/tokenizer/pipeline_tokenizer.h"

namespace dtrain::plan {

inline constexpr size_t kRankBytesMax = 1 << 10;

struct ByteRanks {
  std::vector<std::string> tokens;  // The bytes by rank; "" for gaps.
  uint32_t first_id = 0;            // The id of rank 0; ids below it are for special tokens.
  std::string rules;                // What else decides a text's tokens: a part of the identity.
};

// Sets the tokens, the merges, the decoder and the identity of `parts`. InvalidArgument: two ranks
// have the same bytes, or a byte has no token.
absl::Status FillByteRanks(const ByteRanks& ranks, PipelineTokenizerParts* parts);

// Adds special tokens, {text, id} each.
void AddSpecialTokens(const std::vector<std::pair<std::string, uint32_t>>& specials,
                      PipelineTokenizerParts* parts);

}  // namespace dtrain::plan
