// The tensors that a checkpoint holds, whichever ranks and files they are stored in.
//
// A tensor of model/ is whole. Optimizer states and masters lie in the layout's order, cut over the
// files of all ranks: here they are one tensor again, so that checkpoints of different numbers of
// ranks and ZeRO stages can be compared. Tensors that belong to one rank (random states, its own
// module buffers) stay that rank's. Plain values and a pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/restore/checkpoint_tensors.h"

namespace dtrain::checkpoint {

struct LogicalTensor {
  // Elements [begin, begin + elements) are those of manifest.tensors[tensor] from `first` on.
  struct Piece {
    uint64_t begin = 0;
    uint64_t elements = 0;
    size_t tensor = 0;
    uint64_t first = 0;
  };
  bool of_model = false;
  std::string name;
  int rank = -1;  // In state/ the rank that it belongs to; -1: all ranks'.
  std::string dtype;
  std::vector<uint64_t> shape;
  std::vector<Piece> pieces;  // Sorted by `begin`, without gaps.
  // The elements of the layout that a tensor holds which is cut over the ranks, as sorted ranges
  // [begin, end) that do not touch. Empty for other tensors.
  std::vector<std::pair<uint64_t, uint64_t>> covers;

  uint64_t elements() const {
    return pieces.empty() ? 0 : pieces.back().begin + pieces.back().elements;
  }
};

// All tensors, sorted: model/ first, then by name and rank. InvalidArgument: the ranges that ranks
// say to hold do not fit their tensors or overlap.
absl::StatusOr<std::vector<LogicalTensor>> LogicalTensors(const Manifest& manifest);

// Reads the elements from `first` on into `into`. REQUIRES: into.size() is a multiple of
// `element_bytes`, and the tensor has that many elements.
absl::Status ReadElements(CheckpointTensors& from, const LogicalTensor& tensor, uint64_t first,
                          size_t element_bytes, absl::Span<std::byte> into);

// The engine in whose name space a tensor is, "NAME/...": "" for the first, which is the model.
std::string EngineOf(const Manifest& manifest, absl::string_view tensor);

// Keys of a rank's record: the ranges of the layout that its states hold, and the records of the
// engines after the first, which have such ranges of their own.
inline constexpr char kRangesKey[] = "ranges";
inline constexpr char kEnginesKey[] = "engines";

}  // namespace dtrain::checkpoint
