// A SentencePiece model without its library: with the same ids and texts, and for byte pairs many
// times its speed. Immutable; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_bpe.h"
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_codec.h"
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_unigram.h"

namespace dtrain::plan {

class NativeCodec : public SentencePieceCodec {
 public:
  // nullptr: the model needs its library. See SentencePieceBpe and SentencePieceUnigram; texts that
  // are changed after decoding are not done here either.
  static std::unique_ptr<NativeCodec> Create(SentencePieceProto proto);

  bool Encode(std::string_view text, std::vector<uint32_t>* ids, std::string* error) const override;
  std::string Decode(const std::vector<uint32_t>& ids) const override;

  uint32_t size() const override { return static_cast<uint32_t>(proto_.pieces.size()); }
  int begin_id() const override { return ControlId(proto_.begin_piece); }
  int end_id() const override { return ControlId(proto_.end_piece); }
  int IdOf(const std::string& piece) const override;
  std::string PieceOf(uint32_t id) const override { return proto_.pieces[id].text; }
  bool IsControl(uint32_t id) const override {
    return proto_.pieces[id].type == SentencePieceProto::kControl;
  }

 private:
  explicit NativeCodec(SentencePieceProto proto);

  int ControlId(const std::string& piece) const;

  SentencePieceProto proto_;
  absl::flat_hash_map<std::string, int> ids_;
  int unknown_ = 0;
  // One of the two.
  std::unique_ptr<SentencePieceBpe> bpe_;
  std::unique_ptr<SentencePieceUnigram> unigram_;
};

}  // namespace dtrain::plan
