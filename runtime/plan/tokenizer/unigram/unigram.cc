#include "runtime/plan/tokenizer/unigram/unigram.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/tokenizer/bpe.h"
#include "runtime/plan/tokenizer/json_fields.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"

namespace dtrain::plan {
namespace {

// An unknown character costs this much more than the worst piece.
constexpr double kUnknownPenalty = 10.0;

}  // namespace

absl::StatusOr<UnigramPieces> Unigram::ReadPieces(const Json& model) {
  DT_ASSIGN_OR_RETURN(const Json* const rows, ArrayField(model, "model", "vocab"));
  UnigramPieces pieces;
  pieces.reserve(rows->size());
  for (const Json& row : *rows) {
    if (!row.is_array() || row.size() != 2 || !row[0].is_string() || !row[1].is_number()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("model.vocab[%d] is not a piece and its score", pieces.size()));
    }
    pieces.emplace_back(row[0].get<std::string>(), row[1].get<double>());
  }
  return pieces;
}

absl::StatusOr<std::unique_ptr<Unigram>> Unigram::FromJson(const Json& model,
                                                           const UnigramPieces& pieces) {
  DT_RETURN_IF_ERROR(OnlyFields(model, "model", {"unk_id", "vocab", "byte_fallback"}));
  if (!model.contains("unk_id") || model["unk_id"].is_null()) {
    return absl::UnimplementedError(
        "model: Unigram without \"unk_id\" is not supported; name the id of the unknown piece");
  }
  UnigramParts parts;
  DT_ASSIGN_OR_RETURN(parts.unknown, CountField(model, "model", "unk_id"));
  if (parts.unknown >= pieces.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("model.unk_id: the id %d is outside the vocabulary of %d pieces",
                        parts.unknown, pieces.size()));
  }
  DT_ASSIGN_OR_RETURN(parts.byte_fallback, BoolField(model, "model", "byte_fallback", false));
  for (const auto& [text, score] : pieces) {
    const auto id = static_cast<uint32_t>(parts.whole_ids.size());
    parts.whole_ids.emplace(text, id);
    if (!text.empty()) {
      parts.pieces.push_back({text, id, score});
    }
  }
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const auto found = parts.whole_ids.find(absl::StrFormat("<0x%02X>", byte));
    parts.byte_ids[byte] = found == parts.whole_ids.end() ? kNoToken : found->second;
  }
  return std::make_unique<Unigram>(std::move(parts));
}

Unigram::Unigram(UnigramParts parts) : parts_(std::move(parts)) {
  std::sort(parts_.pieces.begin(), parts_.pieces.end(),
            [](const auto& a, const auto& b) { return a.text < b.text; });
  const auto worst =
      std::min_element(parts_.pieces.begin(), parts_.pieces.end(),
                       [](const auto& a, const auto& b) { return a.score < b.score; });
  unknown_score_ = (worst == parts_.pieces.end() ? 0 : worst->score) - kUnknownPenalty;
  BuildTrie();
}

void Unigram::BuildTrie() {
  // The pieces that begin with the text of a node, all of whose first `depth` bytes are equal.
  struct Range {
    uint32_t begin;
    uint32_t end;
    uint32_t depth;
  };
  std::vector<Range> ranges = {{0, static_cast<uint32_t>(parts_.pieces.size()), 0}};
  labels_.assign(1, '\0');
  for (size_t node = 0; node < ranges.size(); ++node) {
    const Range range = ranges[node];
    const auto byte_of = [&](uint32_t i) { return parts_.pieces[i].text[range.depth]; };
    const bool ends_here =
        range.begin < range.end && parts_.pieces[range.begin].text.size() == range.depth;
    nodes_.push_back({static_cast<uint32_t>(ranges.size()), 0, ends_here ? range.begin : kNoPiece});
    for (uint32_t i = range.begin + (ends_here ? 1 : 0), end = i; i < range.end; i = end) {
      while (end < range.end && byte_of(end) == byte_of(i)) {
        ++end;
      }
      ranges.push_back({i, end, range.depth + 1});
      labels_.push_back(byte_of(i));
      ++nodes_.back().children;
    }
  }
}

uint32_t Unigram::Child(uint32_t node, char byte) const {
  const Node& parent = nodes_[node];
  const char* const labels = labels_.data() + parent.children_begin;
  const void* const found = std::memchr(labels, byte, parent.children);
  return found == nullptr ? 0
                          : parent.children_begin +
                                static_cast<uint32_t>(static_cast<const char*>(found) - labels);
}

std::vector<Unigram::Best> Unigram::BestEnds(absl::string_view word) const {
  std::vector<Best> best(word.size() + 1);
  for (size_t begin = 0, next = 0; begin < word.size(); begin = next) {
    next = begin + Utf8Length(word[begin]);
    const auto offer = [&](size_t end, double sum, uint32_t piece) {
      if (best[end].begin == kNowhere || sum > best[end].score) {
        best[end] = {Rounded(sum), static_cast<uint32_t>(begin), piece};
      }
    };
    bool is_known = false;  // The character alone is a piece.
    uint32_t node = 0;
    for (size_t at = begin; at < word.size(); ++at) {
      node = Child(node, word[at]);
      if (node == 0) {
        break;
      }
      if (const uint32_t piece = nodes_[node].piece; piece != kNoPiece) {
        offer(at + 1, parts_.pieces[piece].score + best[begin].score, piece);
        is_known = is_known || at + 1 == next;
      }
    }
    if (!is_known) {
      offer(next, Rounded(Rounded(unknown_score_) + best[begin].score), kNoPiece);
    }
  }
  return best;
}

void Unigram::AppendUnknown(absl::string_view text, std::vector<uint32_t>* ids) const {
  if (const auto found = parts_.whole_ids.find(text); found != parts_.whole_ids.end()) {
    ids->push_back(found->second);
    return;
  }
  const auto id_of = [&](char byte) { return parts_.byte_ids[static_cast<uint8_t>(byte)]; };
  if (parts_.byte_fallback &&
      std::none_of(text.begin(), text.end(), [&](char byte) { return id_of(byte) == kNoToken; })) {
    std::transform(text.begin(), text.end(), std::back_inserter(*ids), id_of);
    return;
  }
  ids->push_back(parts_.unknown);
}

void Unigram::EncodeWord(absl::string_view word, std::vector<uint32_t>* ids) const {
  const std::vector<Best> best = BestEnds(word);
  std::vector<size_t> ends;
  for (size_t end = word.size(); end > 0; end = best[end].begin) {
    ends.push_back(end);
  }
  const auto is_unknown = [&](const Best& way) {
    return way.piece == kNoPiece || parts_.pieces[way.piece].id == parts_.unknown;
  };
  // Unknown characters in a row are one.
  uint32_t unknown_begin = kNowhere;
  for (size_t i = ends.size(); i-- > 0;) {
    const Best& way = best[ends[i]];
    if (!is_unknown(way)) {
      ids->push_back(parts_.pieces[way.piece].id);
      continue;
    }
    unknown_begin = unknown_begin == kNowhere ? way.begin : unknown_begin;
    if (i == 0 || !is_unknown(best[ends[i - 1]])) {
      AppendUnknown(word.substr(unknown_begin, ends[i] - unknown_begin), ids);
      unknown_begin = kNowhere;
    }
  }
}

}  // namespace dtrain::plan
