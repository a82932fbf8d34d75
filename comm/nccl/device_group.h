// A Group whose buffers are on a CUDA device: what the engine needs of it beyond Group.
//
// Its collectives run in order on one stream of its own, apart from the compute stream. Each waits,
// on the device, for what the compute stream held at the call; nothing here waits for the device
// but where it says so. Thread-safe as Group is.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/types/span.h"
#include "comm/group.h"
#include "comm/nccl/cuda_api.h"

namespace dtrain::comm {

// A call of Group::ReduceScatter.
struct ReduceScatterCall {
  Buffer input;
  Buffer output;
  CollectiveOptions options = {};
};

class DeviceGroup : public Group {
 public:
  // ReduceScatter for each of `calls`, in order. The host's cost is that of one where the group can
  // run them together; they then begin and end as one on the device, and each has a record and a
  // limit of its own. No Works: errors are the group's, and streams order what follows. REQUIRES:
  // all ranks give the same calls together; no buffer overlaps one of another call.
  virtual absl::Status ReduceScatterCoalesced(absl::Span<const ReduceScatterCall> calls,
                                              ReduceOp op) = 0;
  // Queues work of the caller's behind the collectives started so far: `launch` is given the
  // group's stream, puts operations on it and must not wait. What `launch` returns is given here
  // when it ran at once, else by Health. Memory that it names must live until JoinStream's work is
  // done.
  virtual absl::Status Then(std::function<absl::Status(CudaStream* stream)> launch) = 0;
  // Later work on `stream` waits, on the device, for everything started so far. NCCL: the host does
  // not wait. Staged groups: until the host has exchanged the data.
  virtual absl::Status JoinStream(CudaStream* stream) = 0;
  // Later work on `stream` waits, on the device, for `event`, which a Then before recorded on the
  // group's stream. The host waits as in JoinStream.
  virtual absl::Status Await(CudaEvent* event, CudaStream* stream) = 0;
  // OK, or why the group is broken. Never blocks.
  virtual absl::Status Health() const = 0;
  // User-buffer registration of device memory, so that collectives on it need no staging copy.
  // Drop it before the memory is freed.
  virtual absl::StatusOr<std::unique_ptr<Registration>> RegisterDevice(void* data,
                                                                       size_t bytes) = 0;
  // Collective and blocking: the group of the ranks that gave this `color`, in the order of `key`,
  // with a stream of its own: its collectives and this group's are in no order but that of the
  // compute stream. Null for a negative colour. `store` is the one that this group was made with;
  // `name`: of its role.
  virtual absl::StatusOr<std::unique_ptr<DeviceGroup>> SplitGroup(Store* store, int color, int key,
                                                                  const std::string& name) = 0;
};

}  // namespace dtrain::comm
