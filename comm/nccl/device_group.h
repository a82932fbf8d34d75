// A Group whose buffers are on a CUDA device, with the functions beyond Group that the engine
// needs.
//
// Its collectives run in order on the group's own stream, beside the compute stream. Each waits, on
// the device, for the work that the compute stream held at the call. The host waits for the device
// only in functions that say so. Thread-safe as Group is.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/types/span.h"
#include "comm/group.h"
#include "comm/nccl/cuda_api.h"

namespace dtrain::comm {

// The arguments of Group::ReduceScatter.
struct ReduceScatterCall {
  Buffer input;
  Buffer output;
  CollectiveOptions options = {};
};

class DeviceGroup : public Group {
 public:
  // Does ReduceScatter for each of `calls`, in order. If the group can run them together, the host
  // has the cost of one call, and they begin and end together on the device. Each has its own
  // record and limit. There are no Works: an error breaks the group, and streams order the work
  // that follows. REQUIRES: all ranks give the same calls together; no buffer overlaps one of
  // another call.
  virtual absl::Status ReduceScatterCoalesced(absl::Span<const ReduceScatterCall> calls,
                                              ReduceOp op) = 0;
  // Queues the caller's work behind the collectives that were started so far. `launch` puts
  // operations on the group's stream, which it is given, and must not wait. If it runs at once, its
  // error is returned here, else Health gives it. Memory that it uses must live until the work that
  // JoinStream waits for is done.
  virtual absl::Status Then(std::function<absl::Status(CudaStream* stream)> launch) = 0;
  // Later work on `stream` waits, on the device, for everything that was started so far. With NCCL
  // the host does not wait. With a staged group it waits until the hosts have exchanged the data.
  virtual absl::Status JoinStream(CudaStream* stream) = 0;
  // Later work on `stream` waits, on the device, for `event`, which an earlier Then has recorded on
  // the group's stream. The host waits as in JoinStream.
  virtual absl::Status Await(CudaEvent* event, CudaStream* stream) = 0;
  // OK, or the reason why the group is broken. Never blocks.
  virtual absl::Status Health() const = 0;
  // User-buffer registration of device memory, so that collectives on it need no staging copy.
  // Drop it before the memory is freed. Give whole blocks of CudaApi::MallocDevice: NVLink SHARP
  // takes no other (comm/nccl/plugin/shareable_memory.h).
  virtual absl::StatusOr<std::unique_ptr<Registration>> RegisterDevice(void* data,
                                                                       size_t bytes) = 0;
  // Collective and blocking: the group of the ranks that gave this `color`, in the order of `key`;
  // null for a negative colour. It has its own stream, so only the compute stream orders its
  // collectives and this group's. `store` is the one with which this group was made, and `name` the
  // new group's role.
  virtual absl::StatusOr<std::unique_ptr<DeviceGroup>> SplitGroup(Store* store, int color, int key,
                                                                  const std::string& name) = 0;
};

}  // namespace dtrain::comm
