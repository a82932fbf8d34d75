// Between a GPU's weights and the host's optimizer, whose states are in host memory
// (offload_optimizer): reduced gradients come through pinned buffers, a chunk at a time, and new
// values go back through them. While the host updates one chunk, gradients of those behind it come
// and values of those before it go, each way on a stream of its own: a GPU copies both ways at
// once.
//
// Weights in fp32 are their own master and live on the device alone, so they come along with their
// gradients. Weights that are offloaded too are updated where they are, and none travels. For the
// thread that trains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/device/device.h"
#include "runtime/device/device_stream.h"
#include "runtime/optimizer/state_stream.h"
#include "runtime/optimizer/update_rule.h"

namespace dtrain {

struct ExchangeOptions {
  int64_t chunk_elements = 0;   // The largest chunk's; with a stream of states as the stream's.
  int buffers = 4;              // At least 3: one comes, one is updated, one goes.
  bool values_on_host = false;  // offload_param.
  absl::Duration timeout = absl::Minutes(10);  // For one chunk.
};

// Pieces that lie side by side in the layout and in what the rank owns as one, of no settings: what
// one copy takes. Pure.
std::vector<UpdatePiece> JoinedPieces(absl::Span<const UpdatePiece> pieces);

class UpdateExchange {
 public:
  // REQUIRES: all outlive it. `states`: of far states; null when they are in memory.
  // Internal: there is no pinned memory for the buffers.
  static absl::StatusOr<std::unique_ptr<UpdateExchange>> Create(const Device& device,
                                                                const EngineState& state,
                                                                StateStream* states,
                                                                const ExchangeOptions& options);
  // Waits for copies under way.
  ~UpdateExchange();

  // Chunks that fit its buffers.
  std::vector<StateChunk> Cut(absl::Span<const std::vector<UpdatePiece>> buckets) const;
  // Calls `body` for each piece of each chunk in order, with host memory alone; `changes` of it go
  // back. `ended` is told of a bucket whose values are final for what is queued on the compute
  // stream, or waits for it, from then on. Blocks until all has come, not until all has gone: the
  // compute stream waits for that. Comes after what the compute stream holds now. The first error
  // of a copy ends it: some values are then of this update, some of the last.
  // REQUIRES: chunks are of Cut; `gradient` is on the device.
  using Body = WholeUpdate::Body;
  using Ended = absl::FunctionRef<void(int bucket)>;
  absl::Status Run(absl::Span<const StateChunk> chunks, const ReducedGradient& gradient,
                   Changes changes, Body body, Ended ended);

  // Pinned, in all.
  int64_t bytes() const;

 private:
  struct Slot;
  UpdateExchange(const Device& device, const EngineState& state, StateStream* states,
                 const ExchangeOptions& options);
  absl::Status Allocate();
  absl::Status Fetch(const StateChunk& chunk, const ReducedGradient& gradient, const Slot& slot);
  absl::Status Return(const StateChunk& chunk, const Slot& slot);
  // The memory for a rule: `memory`, but with the values and the gradient of the piece in the slot
  // at `place`.
  PieceMemory MemoryIn(const Slot& slot, int64_t place, PieceMemory memory) const;
  bool fetches_values() const {
    return !options_.values_on_host && state_.flat->dtype() == DType::kFloat32;
  }
  size_t value_bytes() const { return DTypeBytes(state_.flat->dtype()); }

  const Device& device_;
  const EngineState& state_;
  StateStream* const states_;
  const ExchangeOptions options_;
  std::vector<Slot> slots_;                // A ring.
  std::unique_ptr<DeviceEvent> begun_;     // The end of the compute stream when Run began.
  const DeviceEvent* returned_ = nullptr;  // The chunk that went last; null: none.
  std::unique_ptr<DeviceStream> fetches_;
  std::unique_ptr<DeviceStream> returns_;
};

}  // namespace dtrain
