#include "checkpoint/commit/staged_layout.h"

#include <algorithm>

namespace dtrain::checkpoint {
namespace {

// Appends the tensors that stay so long to the stream, which ends at `stream_bytes`.
void AddTensors(const std::vector<NamedTensor>& tensors, BytesStay stay, uint64_t& stream_bytes,
                StagedLayout::PieceOf& piece_of, std::vector<StagedLayout::Piece>& pieces) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const NamedTensor& tensor = tensors[i];
    if (tensor.stay != stay || tensor.bytes.empty()) {
      continue;
    }
    piece_of[i] = pieces.size();
    pieces.push_back({stream_bytes, tensor.bytes, tensor.on_device});
    stream_bytes += tensor.bytes.size();
  }
}

void AddPart(const SpanSource& snapshot, BytesStay stay, StagedLayout& layout) {
  uint64_t begin = layout.block_bytes();
  uint64_t end = begin;
  AddTensors(snapshot.model, stay, end, layout.model_pieces, layout.pieces);
  if (stay != BytesStay::kInGather) {  // Only tensors of the model are gathered.
    AddTensors(snapshot.state, stay, end, layout.state_pieces, layout.pieces);
  }
  for (; begin < end; begin += kSegmentBytes) {
    layout.segment_bytes.push_back(std::min(kSegmentBytes, end - begin));
  }
}

}  // namespace

StagedLayout LayOut(const SpanSource& snapshot) {
  StagedLayout layout;
  layout.model_pieces.resize(snapshot.model.size());
  layout.state_pieces.resize(snapshot.state.size());
  AddPart(snapshot, BytesStay::kInGather, layout);
  // The next part begins a segment, because one is gathered as a whole or not at all.
  layout.step_begin = layout.segment_bytes.size();
  AddPart(snapshot, BytesStay::kUntilStep, layout);
  layout.step_end = layout.segment_bytes.size();  // So does this: a device copies it by itself.
  AddPart(snapshot, BytesStay::kUntilUpdate, layout);
  return layout;
}

std::vector<StagedLayout::Piece> StagedLayout::PiecesIn(size_t segment) const {
  const uint64_t begin = segment * kSegmentBytes;
  const uint64_t end = begin + kSegmentBytes;
  auto piece = std::upper_bound(pieces.begin(), pieces.end(), begin,
                                [](uint64_t at, const Piece& other) { return at < other.begin; });
  --piece;  // A part of the stream begins with a piece, and none is empty.
  std::vector<Piece> within;
  for (; piece != pieces.end() && piece->begin < end; ++piece) {
    const uint64_t at = std::max(begin, piece->begin);
    within.push_back({at, piece->bytes.subspan(at - piece->begin, end - at), piece->on_device});
  }
  return within;
}

}  // namespace dtrain::checkpoint
