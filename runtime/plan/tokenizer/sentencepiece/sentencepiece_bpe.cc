#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_bpe.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"

namespace dtrain::plan {
namespace {

constexpr size_t kPieceBytesMax = 512;  // Each cut of a piece in two is looked up.

using PieceIds = absl::flat_hash_map<absl::string_view, uint32_t>;

bool HasSpaceInside(absl::string_view text) {
  bool behind_character = false;
  for (size_t i = 0; i < text.size(); i += Utf8Length(text[i])) {
    const bool is_space = text.substr(i, kSentencePieceSpace.size()) == kSentencePieceSpace;
    if (is_space && behind_character) {
      return true;
    }
    behind_character = !is_space;
  }
  return false;
}

// Puts each piece where it belongs. False: a piece is of a kind that is not done here.
bool SortPieces(const SentencePieceProto& proto, PieceIds* normal, BpeParts* parts) {
  parts->byte_ids.fill(kNoToken);
  for (size_t i = 0; i < proto.pieces.size(); ++i) {
    const SentencePieceProto::Piece& piece = proto.pieces[i];
    const auto id = static_cast<uint32_t>(i);
    std::string repaired;
    if (piece.text.empty() || piece.text.size() > kPieceBytesMax || !std::isfinite(piece.score) ||
        RepairedUtf8(piece.text, &repaired).data() != piece.text.data()) {
      return false;
    }
    const bool is_character = Utf8Length(piece.text[0]) == piece.text.size();
    if (piece.type == SentencePieceProto::kNormal) {
      if (!normal->emplace(piece.text, id).second) {
        return false;
      }
      if (is_character) {
        size_t at = 0;
        parts->character_ids.emplace(NextCodePoint(piece.text, &at), id);
      }
      continue;
    }
    const int byte = piece.type == SentencePieceProto::kByte ? ByteOfPiece(piece.text) : -1;
    if (byte >= 0) {
      parts->byte_ids[static_cast<size_t>(byte)] = id;
    } else if (piece.type == SentencePieceProto::kUnknown && !parts->unknown.has_value()) {
      parts->unknown = id;
    } else if (piece.type != SentencePieceProto::kControl) {
      return false;
    }
    // A reserved piece of one character would take that character.
    if (is_character) {
      return false;
    }
  }
  const auto bytes = std::count(parts->byte_ids.begin(), parts->byte_ids.end(), kNoToken);
  return parts->unknown.has_value() && normal->contains(kSentencePieceSpace) &&
         (bytes == 0 || !proto.byte_fallback);
}

// Any two neighbours whose texts together are a piece merge into it, the piece of the highest score
// first. False: two pieces have the same score, or a character of one is no piece.
bool FindMerges(const SentencePieceProto& proto, const PieceIds& normal, BpeParts* parts) {
  std::vector<std::pair<float, uint32_t>> order;
  for (const auto& [text, id] : normal) {
    if (Utf8Length(text[0]) < text.size()) {
      order.emplace_back(-proto.pieces[id].score, id);
    }
  }
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && order[i].first == order[i - 1].first) {
      return false;
    }
    const absl::string_view text = proto.pieces[order[i].second].text;
    for (size_t at = 0, next = 0; at < text.size(); at = next) {
      next = at + Utf8Length(text[at]);
      if (!normal.contains(text.substr(at, next - at))) {
        return false;
      }
      const auto left = normal.find(text.substr(0, at));
      const auto right = normal.find(text.substr(at));
      if (at > 0 && left != normal.end() && right != normal.end()) {
        parts->merges.push_back({left->second, right->second, order[i].second});
      }
    }
  }
  return true;
}

}  // namespace

std::unique_ptr<SentencePieceBpe> SentencePieceBpe::Create(const SentencePieceProto& proto) {
  if (proto.model_type != SentencePieceProto::kBpeModel) {
    return nullptr;
  }
  std::optional<SentencePieceNormalizer> normalizer = SentencePieceNormalizer::Create(proto);
  BpeParts parts;
  PieceIds normal;
  if (!normalizer.has_value() || !SortPieces(proto, &normal, &parts) ||
      !FindMerges(proto, normal, &parts)) {
    return nullptr;
  }
  parts.byte_fallback = proto.byte_fallback;
  parts.fuse_unknown = true;
  parts.equal_results_share_rank = true;
  const bool words_are_apart = std::none_of(
      normal.begin(), normal.end(), [](const auto& piece) { return HasSpaceInside(piece.first); });
  return std::unique_ptr<SentencePieceBpe>(
      new SentencePieceBpe(*std::move(normalizer), std::move(parts), words_are_apart));
}

void SentencePieceBpe::Encode(absl::string_view text, std::vector<uint32_t>* ids) const {
  std::string normalized;
  normalizer_.Apply(text, &normalized);
  std::unique_ptr<BpeScratch> scratch = scratches_.Borrow();
  absl::string_view left = normalized;
  while (words_are_apart_ && !left.empty()) {
    // A word is spaces and what follows them up to the next space.
    size_t begin = 0;
    while (left.substr(begin, kSentencePieceSpace.size()) == kSentencePieceSpace) {
      begin += kSentencePieceSpace.size();
    }
    const size_t end = std::min(left.find(kSentencePieceSpace, begin), left.size());
    bpe_.EncodeWord(left.substr(0, end), scratch.get(), ids);
    left.remove_prefix(end);
  }
  bpe_.EncodeWord(left, scratch.get(), ids);
  scratches_.GiveBack(std::move(scratch));
}

}  // namespace dtrain::plan
