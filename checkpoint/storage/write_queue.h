// Writes of blocks to files, several at once: the seam below DirectFile.
//
// By io_uring (uring_queue.cc; builds without liburing's header have no_uring.cc in its place), or
// by threads where the kernel or a container refuses it. A queue is used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace dtrain::checkpoint {

inline constexpr size_t kWriteSlots = 4;  // Writes of a queue that may be under way.

class WriteQueue {
 public:
  struct Ended {
    size_t slot = 0;
    int64_t result = 0;  // Bytes that were written, or -errno.
  };

  virtual ~WriteQueue() = default;
  // Starts to write `data` at `offset` of the file. The bytes stay as they are until the write has
  // ended. REQUIRES: slot < kWriteSlots, and nothing is under way in it.
  virtual absl::Status Start(size_t slot, int fd, uint64_t offset,
                             absl::Span<const std::byte> data) = 0;
  // Waits until a write has ended. REQUIRES: one is under way.
  virtual absl::StatusOr<Ended> Wait() = 0;
};

// A queue by io_uring. Unimplemented or PermissionDenied: it cannot be used here; the message says
// why.
absl::StatusOr<std::unique_ptr<WriteQueue>> OpenUringQueue();
// A queue by kWriteSlots threads.
std::unique_ptr<WriteQueue> MakeThreadQueue();

}  // namespace dtrain::checkpoint
