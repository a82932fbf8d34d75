// WriteQueue by threads that call pwrite: for hosts and containers without io_uring.
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>

#include "base/threads/bounded_queue.h"
#include "base/threads/worker.h"
#include "checkpoint/storage/write_queue.h"

namespace dtrain::checkpoint {
namespace {

class ThreadQueue final : public WriteQueue {
 public:
  absl::Status Start(size_t slot, int fd, uint64_t offset,
                     absl::Span<const std::byte> data) override {
    if (threads_[slot] == nullptr) {  // A file of few blocks needs few threads.
      threads_[slot] = std::make_unique<Worker>(
          WorkerOptions{.name = "dtrain-write", .queue_capacity = 1, .low_priority = true});
    }
    threads_[slot]->Submit([this, slot, fd, offset, data] {
      const ssize_t n = pwrite(fd, data.data(), data.size(), static_cast<off_t>(offset));
      ended_.Push({slot, n >= 0 ? n : -errno});
    });
    return absl::OkStatus();
  }

  absl::StatusOr<Ended> Wait() override { return *ended_.Pop(); }

 private:
  BoundedQueue<Ended> ended_{kWriteSlots};
  std::array<std::unique_ptr<Worker>, kWriteSlots> threads_;  // End first.
};

}  // namespace

std::unique_ptr<WriteQueue> MakeThreadQueue() { return std::make_unique<ThreadQueue>(); }

}  // namespace dtrain::checkpoint
