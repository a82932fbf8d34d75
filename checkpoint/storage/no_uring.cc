// The twin of uring_queue.cc for builds without liburing's header.
#include "checkpoint/storage/write_queue.h"

namespace dtrain::checkpoint {

absl::StatusOr<std::unique_ptr<WriteQueue>> OpenUringQueue() {
  return absl::UnimplementedError(
      "this dtrain was built without io_uring; install liburing-dev and build it again");
}

}  // namespace dtrain::checkpoint
