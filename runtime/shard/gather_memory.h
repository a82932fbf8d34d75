// Where the weights that ZeRO stage 3 gathers lie for as long as they are needed: pages of the host
// that open and close, or memory that is mapped on a GPU. LiveParameters says when.
//
// A bucket's addresses never change. Not thread-safe: its owner locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/group.h"
#include "comm/nccl/device_group.h"
#include "comm/symmetric_buffer.h"
#include "runtime/device/device.h"

namespace dtrain {

// This rank's values: [shard elements] of the flat values' type. Peers read them without a copy
// where they are `symmetric`, or are registered as `device`'s; both may be null. A GPU's rank whose
// weights are offloaded has them in memory of the host: both are null.
struct ShardMemory {
  std::byte* data = nullptr;
  std::shared_ptr<comm::SymmetricBuffer> symmetric;
  std::shared_ptr<DeviceMemory> device;
  // Page-locked memory of the host, which a GPU's copies and kernels reach in their stream's order.
  bool pinned = false;
};

class GatherMemory {
 public:
  virtual ~GatherMemory() = default;

  // A gather may write there; what is there is undefined, or what it held when it was closed.
  virtual absl::Status Open(int bucket) = 0;
  // Must not be read, but keeps its memory for the next Open.
  virtual absl::Status Close(int bucket) = 0;
  // Gives the memory back. REQUIRES: its gather, if any, has arrived.
  virtual absl::Status Discard(int bucket) = 0;

  // Where a gather of `bucket`, which is open, takes this rank's part from.
  virtual absl::StatusOr<const std::byte*> Share(int bucket) = 0;
  // Right after the gather of `bucket` was started. `by`: the small group of a GPU's rank that it
  // goes over; null: it is over all ranks.
  virtual absl::Status Started(int bucket, comm::DeviceGroup* by) = 0;
  // Operations from now on find the whole bucket. `work` is its gather.
  virtual absl::Status Arrive(int bucket, comm::Work work) = 0;
  // Bytes that weights take here, or took and keep.
  virtual int64_t bytes() const = 0;
  // Seconds that Open waited for memory since the last call.
  virtual double TakeWaitedSeconds() { return 0; }
};

}  // namespace dtrain
