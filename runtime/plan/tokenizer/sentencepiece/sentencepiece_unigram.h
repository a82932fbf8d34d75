// Encodes by the scores of a SentencePiece model, with the ids of its library. Immutable;
// thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_normalizer.h"
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_proto.h"
#include "runtime/plan/tokenizer/unigram/unigram.h"

namespace dtrain::plan {

class SentencePieceUnigram {
 public:
  // nullptr: the model needs what is not done here: another kind than Unigram, user-defined or
  // unused pieces, or spaces as suffixes.
  static std::unique_ptr<SentencePieceUnigram> Create(const SentencePieceProto& proto);

  // Appends the tokens of `text`. The whole text is cut at once: its sums are rounded to floats, so
  // that where a sum begins decides between nearly equal ways. REQUIRES: it is UTF-8.
  void Encode(absl::string_view text, std::vector<uint32_t>* ids) const {
    std::string normalized;
    normalizer_.Apply(text, &normalized);
    unigram_.EncodeWord(normalized, ids);
  }

 private:
  SentencePieceUnigram(SentencePieceNormalizer normalizer, UnigramParts parts)
      : normalizer_(std::move(normalizer)), unigram_(std::move(parts)) {}

  SentencePieceNormalizer normalizer_;
  Unigram unigram_;
};

}  // namespace dtrain::plan
