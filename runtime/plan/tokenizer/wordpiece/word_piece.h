// WordPiece, BERT's model: of each word the longest piece that is a token, then the longest of the
// rest among the tokens that continue a word ("##ing"). Immutable; thread-safe.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/json.h"
#include "runtime/plan/tokenizer/word_encoder.h"

namespace dtrain::plan {

class WordPiece : public WordEncoder {
 public:
  // `model` is the object "model" of a tokenizer.json, `vocab` its tokens and
  // ids.
  static absl::StatusOr<std::unique_ptr<WordPiece>> FromJson(
      const Json& model, const std::vector<std::pair<std::string, uint32_t>>& vocab);

  void EncodeWord(absl::string_view word, std::vector<uint32_t>* ids) const override;

 private:
  WordPiece() = default;

  absl::flat_hash_map<std::string, uint32_t> first_;
  absl::flat_hash_map<std::string, uint32_t> later_;  // Without the prefix "##".
  size_t piece_bytes_max_ = 0;
  uint32_t unknown_ = 0;
  uint32_t word_characters_max_ = 0;  // A longer word is unknown.
};

}  // namespace dtrain::plan
