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
#include "base/threads/worker.h"
#include "runtime/offload/far_tier.h"
#include "runtime/optimizer/update_pieces.h"

namespace dtrain {

// Pieces whose states travel together: elements [local, local + elements) of what the rank owns.
// Pieces in near memory do not travel.
struct StateChunk {
  int64_t local = 0;
  int64_t elements = 0;
  std::vector<UpdatePiece> pieces = {};
  int bucket = 0;
  bool ends_bucket = false;  // Nothing of the bucket follows.
  bool near = false;         // Its states are near memory.
};

// Chunks of at most `elements_max`, cut at whole blocks of norms if they hold one, in the order of
// the buckets, none of two buckets; a bucket without pieces gives an empty chunk. States of
// elements before `near_elements` are near. Pure. REQUIRES: pieces ascend by `local`.
std::vector<StateChunk> CutChunks(absl::Span<const std::vector<UpdatePiece>> buckets,
                                  int64_t elements_max, int64_t near_elements = 0);

struct StreamOptions {
  int64_t chunk_elements = 0;
  int buffers = 2;  // At least 2: at a time one is updated, the others are read or written.
  int threads = 1;  // They read and write.
  int64_t near_elements = 0;
};

class StateStream {
 public:
  StateStream(std::vector<FarState> states, const StreamOptions& options);
  // Writes what is under way.
  ~StateStream();

  // Chunks that fit its buffers.
  std::vector<StateChunk> Cut(absl::Span<const std::vector<UpdatePiece>> buckets) const {
    return CutChunks(buckets, options_.chunk_elements, options_.near_elements);
  }
  // Calls `body` for each chunk in order, with each state's near bytes of it; what it leaves there
  // is written back. Blocks until all is. The first failure of the tier ends it: some states are
  // then of this update, some of the last. REQUIRES: chunks are of Cut.
  using Body = absl::FunctionRef<void(const StateChunk& chunk, absl::Span<std::byte* const> near)>;
  absl::Status Run(absl::Span<const StateChunk> chunks, Body body);

 private:
  struct Buffer;
  void Load(Buffer& buffer, int64_t local, int64_t elements);
  void Store(Buffer& buffer, int64_t local, int64_t elements);
  // The address of element `local` in each state's near memory.
  std::vector<std::byte*> NearAt(int64_t local) const;
  Worker& WorkerOf(size_t buffer) { return *workers_[buffer % workers_.size()]; }
  void Drain();

  const std::vector<FarState> states_;
  const StreamOptions options_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  // Each has some of the buffers, whose reads and writes it does in order. Last: their threads end
  // first.
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace dtrain
