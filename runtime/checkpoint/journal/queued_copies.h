// Copies of tensors in page-locked memory, queued on a GPU's compute stream: they hold what the
// work that was queued before leaves in them. Queue is for the thread that trains, Wait for any
// one thread.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/device/device.h"
#include "runtime/model/flat_parameters.h"

namespace dtrain {

class QueuedCopies {
 public:
  // REQUIRES: `device` is a GPU and outlives it. `timeout`: the longest wait.
  QueuedCopies(const Device& device, absl::Duration timeout) : device_(device), timeout_(timeout) {}
  QueuedCopies(const QueuedCopies&) = delete;
  QueuedCopies& operator=(const QueuedCopies&) = delete;
  // Waits for copies under way.
  ~QueuedCopies();

  // Queues the copies, over those of the last call. Memory is allocated in the first call, and
  // again when the tensors take more. REQUIRES: nobody needs the last copies any more.
  absl::Status Queue(absl::Span<const NamedTensor> tensors);
  // Waits for them, and gives them as CPU tensors that stay until the next Queue.
  absl::StatusOr<std::vector<NamedTensor>> Wait() const;

 private:
  absl::Status Reserve(size_t bytes);

  const Device& device_;
  const absl::Duration timeout_;
  std::unique_ptr<PinnedMemory> memory_;
  size_t bytes_ = 0;  // The size of memory_.
  std::unique_ptr<DeviceEvent> queued_;
  std::vector<NamedTensor> copies_;
};

}  // namespace dtrain
