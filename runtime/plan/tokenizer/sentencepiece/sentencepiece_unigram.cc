#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_unigram.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "runtime/plan/tokenizer/bpe.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"

namespace dtrain::plan {
namespace {

// nullopt: a piece is of a kind that is not done here.
std::optional<UnigramParts> SortedPieces(const SentencePieceProto& proto) {
  UnigramParts parts;
  parts.byte_ids.fill(kNoToken);
  parts.byte_fallback = proto.byte_fallback;
  parts.sums_are_floats = true;
  absl::flat_hash_set<absl::string_view> texts;
  bool has_unknown = false;
  for (size_t i = 0; i < proto.pieces.size(); ++i) {
    const SentencePieceProto::Piece& piece = proto.pieces[i];
    const auto id = static_cast<uint32_t>(i);
    const int byte = piece.type == SentencePieceProto::kByte ? ByteOfPiece(piece.text) : -1;
    std::string repaired;
    if (piece.text.empty() || !std::isfinite(piece.score) ||
        RepairedUtf8(piece.text, &repaired).data() != piece.text.data()) {
      return std::nullopt;
    }
    if (piece.type == SentencePieceProto::kNormal) {
      if (!texts.insert(piece.text).second) {
        return std::nullopt;
      }
      parts.pieces.push_back({piece.text, id, static_cast<double>(piece.score)});
    } else if (byte >= 0) {
      parts.byte_ids[static_cast<size_t>(byte)] = id;
    } else if (piece.type == SentencePieceProto::kUnknown && !has_unknown) {
      has_unknown = true;
      parts.unknown = id;
    } else if (piece.type != SentencePieceProto::kControl) {
      return std::nullopt;
    }
  }
  const auto missing = std::count(parts.byte_ids.begin(), parts.byte_ids.end(), kNoToken);
  return has_unknown && !parts.pieces.empty() && (missing == 0 || !proto.byte_fallback)
             ? std::optional(std::move(parts))
             : std::nullopt;
}

}  // namespace

std::unique_ptr<SentencePieceUnigram> SentencePieceUnigram::Create(
    const SentencePieceProto& proto) {
  std::optional<SentencePieceNormalizer> normalizer = SentencePieceNormalizer::Create(proto);
  std::optional<UnigramParts> parts = SortedPieces(proto);
  if (proto.model_type != SentencePieceProto::kUnigramModel || !normalizer.has_value() ||
      !parts.has_value()) {
    return nullptr;
  }
  return std::unique_ptr<SentencePieceUnigram>(
      new SentencePieceUnigram(*std::move(normalizer), *std::move(parts)));
}

}  // namespace dtrain::plan
