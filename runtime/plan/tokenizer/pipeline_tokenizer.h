// A tokenizer as the pipeline that tokenizer.json describes and tiktoken's files imply: a
// normalizer, a pre-tokenizer that cuts the text into words, and a model that gives a word's
// tokens, which is BPE, Unigram or WordPiece.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "runtime/plan/tokenizer/added_tokens.h"
#include "runtime/plan/tokenizer/bpe.h"
#include "runtime/plan/tokenizer/bpe_scratch_pool.h"
#include "runtime/plan/tokenizer/normalizer.h"
#include "runtime/plan/tokenizer/pre_tokenizer.h"
#include "runtime/plan/tokenizer/token_decoder.h"
#include "runtime/plan/tokenizer/tokenizer.h"
#include "runtime/plan/tokenizer/word_encoder.h"

namespace dtrain::plan {

struct PipelineTokenizerParts {
  std::string kind;
  std::string identity;
  std::vector<std::string> tokens;  // By id, as the file writes them; "" for gaps.
  std::vector<AddedToken> added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  TokenDecoder decoder;
  BpeParts bpe;
  std::shared_ptr<const WordEncoder>
      words;                     // Unigram or WordPiece, in place of `bpe`; may be null.
  std::vector<uint32_t> before;  // The tokens around a text, by the post-processor.
  std::vector<uint32_t> after;
};

class PipelineTokenizer : public Tokenizer {
 public:
  // REQUIRES: every id of the parts is below tokens.size().
  static absl::StatusOr<std::unique_ptr<PipelineTokenizer>> Create(PipelineTokenizerParts parts);

  std::optional<uint32_t> TokenId(absl::string_view token) const override;
  bool IsSpecial(uint32_t id) const override;
  std::string Kind() const override { return parts_.kind; }

 protected:
  absl::Status EncodeUtf8(absl::string_view text, const EncodeOptions& options,
                          std::vector<uint32_t>* ids) const override;
  std::string DecodeIds(absl::Span<const uint32_t> ids, bool skip_special) const override;

 private:
  PipelineTokenizer(PipelineTokenizerParts parts, std::vector<std::string> patterns);

  absl::Status EncodePiece(absl::string_view text, bool is_start, bool special_tokens,
                           BpeScratch* scratch, std::vector<uint32_t>* ids) const;

  PipelineTokenizerParts parts_;
  Bpe bpe_;
  AddedTokenFinder in_text_;
  AddedTokenFinder in_normalized_;
  absl::flat_hash_map<std::string, uint32_t> ids_;
  std::vector<bool> special_;
  absl::flat_hash_map<uint32_t, std::string> decoded_as_;  // Added tokens' normalized texts.
  mutable BpeScratchPool scratches_;
};

}  // namespace dtrain::plan
