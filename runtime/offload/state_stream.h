// The far states of what a rank updates, streamed through a few near buffers: while one chunk is
// updated, a thread writes the one before it back and reads those that follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/worker.h"
#include "runtime/offload/far_tier.h"
#include "runtime/optimizer/update_pieces.h"

namespace dtrain {

// Pieces whose states travel together: elements [local, local + elements) of what the rank owns.
struct StateChunk {
  int64_t local = 0;
  int64_t elements = 0;
  std::vector<UpdatePiece> pieces = {};
  int bucket = 0;
  bool ends_bucket = false;  // Nothing of the bucket follows.
};

// Chunks of at most `elements_max`, in the order of the buckets, none of two buckets; a bucket
// without pieces gives an empty chunk. Pure. REQUIRES: pieces ascend by `local`.
std::vector<StateChunk> CutChunks(absl::Span<const std::vector<UpdatePiece>> buckets,
                                  int64_t elements_max);

class StateStream {
 public:
  // `buffers` >= 2: at a time one is updated, the others are read or written.
  StateStream(std::vector<FarState> states, std::vector<StateChunk> chunks, int buffers);
  // Writes what is under way.
  ~StateStream();

  // Calls `body` for each chunk in order, with each state's near bytes of it; what it leaves there
  // is written back. Blocks until all is. The first failure of the tier ends it: some states are
  // then of this update, some of the last.
  using Body = absl::FunctionRef<void(const StateChunk& chunk, absl::Span<std::byte* const> near)>;
  absl::Status Run(Body body);

  // Of the near buffers, in all.
  int64_t near_bytes() const;

 private:
  struct Buffer;
  void Load(Buffer& buffer, const StateChunk& chunk);
  void Store(Buffer& buffer, const StateChunk& chunk);

  const std::vector<FarState> states_;
  const std::vector<StateChunk> chunks_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  Worker worker_;  // Last: its thread ends first.
};

}  // namespace dtrain
