// Where the bytes of a snapshot lie in the stream that a StagedSource copies, and how the stream is
// cut into segments. Nothing of it changes while the snapshot is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "checkpoint/commit/staging_pool.h"
#include "checkpoint/state_source.h"

namespace dtrain::checkpoint {

// What is gathered, what the next step may change, and what stays until the next update. Each part
// has segments of its own, of which the first begins with a tensor.
inline constexpr uint64_t kStreamParts = 3;

struct StagedLayout {
  struct Piece {  // Bytes of one tensor in the stream, never empty.
    uint64_t begin = 0;
    absl::Span<const std::byte> bytes;
    bool on_device = false;
  };
  // For each tensor of a list its place in `pieces`; none: it is not in the stream.
  using PieceOf = std::vector<std::optional<size_t>>;

  std::vector<Piece> pieces;  // In the stream's order.
  PieceOf model_pieces;
  PieceOf state_pieces;
  // kSegmentBytes for each segment, or less for the last one of a part.
  std::vector<uint64_t> segment_bytes;
  size_t step_begin = 0;  // The first segment of the stream's second part.
  size_t step_end = 0;    // Behind its last one.

  // The bytes of the blocks that hold the whole stream.
  uint64_t block_bytes() const { return segment_bytes.size() * kSegmentBytes; }
  // Gives the parts of pieces that lie in a segment, in the stream's order.
  std::vector<Piece> PiecesIn(size_t segment) const;
};

// The spans of the layout are those of `snapshot`.
StagedLayout LayOut(const SpanSource& snapshot);

}  // namespace dtrain::checkpoint
