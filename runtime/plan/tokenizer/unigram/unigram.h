// Unigram, the model of T5, XLM-R and ALBERT: each piece has a score, and of all ways to cut a word
// that with the highest sum is taken. Immutable; thread-safe.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/json.h"
#include "runtime/plan/tokenizer/word_encoder.h"

namespace dtrain::plan {

using UnigramPieces = std::vector<std::pair<std::string, double>>;  // Texts and scores by id.

struct UnigramParts {
  struct Piece {
    std::string text;  // Not empty; each is there once.
    uint32_t id = 0;
    double score = 0;
  };
  std::vector<Piece> pieces;  // Words are cut into these.
  // Tokens for a run of unknown characters as a whole, which `tokenizers` looks up.
  absl::flat_hash_map<std::string, uint32_t> whole_ids;
  // The tokens of single bytes, or kNoToken.
  std::array<uint32_t, 256> byte_ids;
  bool byte_fallback = false;  // For characters of which every byte has a token.
  uint32_t unknown = 0;
  bool sums_are_floats = false;  // As in SentencePiece; `tokenizers` has doubles.
};

class Unigram : public WordEncoder {
 public:
  // The pieces of the object "model" of a tokenizer.json.
  static absl::StatusOr<UnigramPieces> ReadPieces(const Json& model);
  // REQUIRES: each text of `pieces` is there once.
  static absl::StatusOr<std::unique_ptr<Unigram>> FromJson(const Json& model,
                                                           const UnigramPieces& pieces);

  explicit Unigram(UnigramParts parts);

  // O(bytes * length of the longest piece).
  void EncodeWord(absl::string_view word, std::vector<uint32_t>* ids) const override;

 private:
  // A node of the trie of all pieces. Its children stand side by side, in the order of their bytes.
  struct Node {
    uint32_t children_begin = 0;
    uint32_t children = 0;
    uint32_t piece;  // The index of the piece that ends here, or kNoPiece.
  };
  // The best way to the end of a piece.
  struct Best {
    double score = 0;
    uint32_t begin = kNowhere;  // Where the piece begins.
    uint32_t piece = kNoPiece;
  };
  static constexpr uint32_t kNowhere = UINT32_MAX;
  static constexpr uint32_t kNoPiece = UINT32_MAX;

  void BuildTrie();
  uint32_t Child(uint32_t node, char byte) const;  // 0: none.
  std::vector<Best> BestEnds(absl::string_view word) const;
  void AppendUnknown(absl::string_view text, std::vector<uint32_t>* ids) const;
  double Rounded(double sum) const {
    return parts_.sums_are_floats ? static_cast<double>(static_cast<float>(sum)) : sum;
  }

  UnigramParts parts_;
  std::vector<Node> nodes_;  // The first is the root.
  std::string labels_;       // The byte that leads to each node.
  double unknown_score_ = 0;
};

}  // namespace dtrain::plan
