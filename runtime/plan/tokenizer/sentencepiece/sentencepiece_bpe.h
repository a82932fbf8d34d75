// Encodes by the byte pairs of a SentencePiece model, with the ids of its library and many times
// its speed. Immutable after Create; thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/plan/tokenizer/bpe.h"
#include "runtime/plan/tokenizer/bpe_scratch_pool.h"
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_normalizer.h"
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_proto.h"

namespace dtrain::plan {

class SentencePieceBpe {
 public:
  // nullptr: the model needs what is not done here, and its library has to encode: other kinds
  // than BPE, user-defined or unused pieces, spaces as suffixes, pieces of equal score, or pieces
  // with characters that are no pieces.
  static std::unique_ptr<SentencePieceBpe> Create(const SentencePieceProto& proto);

  // Appends the tokens of `text`. REQUIRES: it is UTF-8.
  void Encode(absl::string_view text, std::vector<uint32_t>* ids) const;

 private:
  SentencePieceBpe(SentencePieceNormalizer normalizer, BpeParts parts, bool words_are_apart)
      : normalizer_(std::move(normalizer)),
        bpe_(std::move(parts)),
        words_are_apart_(words_are_apart) {}

  SentencePieceNormalizer normalizer_;
  Bpe bpe_;
  bool words_are_apart_;  // No piece has a space behind another character.
  mutable BpeScratchPool scratches_;
};

}  // namespace dtrain::plan
