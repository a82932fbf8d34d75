// WriteQueue by io_uring. liburing is opened at run time, so that hosts without it run dtrain too.
#include <liburing.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <memory>

#include "base/dl/open_once.h"
#include "base/status.h"
#include "checkpoint/storage/write_queue.h"

namespace dtrain::checkpoint {
namespace {

// The functions that liburing exports; all others are inline in its header.
struct UringFunctions {
  decltype(io_uring_queue_init)* queue_init = nullptr;
  decltype(io_uring_queue_exit)* queue_exit = nullptr;
  decltype(io_uring_submit)* submit = nullptr;
  decltype(__io_uring_get_cqe)* get_cqe = nullptr;
};

absl::StatusOr<UringFunctions> BindUring(const DynamicLibrary& library) {
  UringFunctions f;
  DT_RETURN_IF_ERROR(library.Bind("io_uring_queue_init", &f.queue_init));
  DT_RETURN_IF_ERROR(library.Bind("io_uring_queue_exit", &f.queue_exit));
  DT_RETURN_IF_ERROR(library.Bind("io_uring_submit", &f.submit));
  DT_RETURN_IF_ERROR(library.Bind("__io_uring_get_cqe", &f.get_cqe));
  return f;
}

class UringQueue final : public WriteQueue {
 public:
  explicit UringQueue(const UringFunctions& functions) : functions_(functions) {}
  UringQueue(const UringQueue&) = delete;
  UringQueue& operator=(const UringQueue&) = delete;
  ~UringQueue() override {
    if (open_) {
      functions_.queue_exit(&ring_);
    }
  }

  absl::Status Open() {
    const int result = functions_.queue_init(kWriteSlots, &ring_, /*flags=*/0);
    open_ = result == 0;
    return open_ ? absl::OkStatus() : ErrnoStatus(-result, "the system refuses io_uring");
  }

  absl::Status Start(size_t slot, int fd, uint64_t offset,
                     absl::Span<const std::byte> data) override {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) {
      return absl::UnavailableError("cannot write: io_uring has no free entry");
    }
    // Not IORING_OP_WRITE, which Linux 5.6 brought; the vector must stay until the write has ended.
    vectors_[slot] = {const_cast<std::byte*>(data.data()), data.size()};
    io_uring_prep_writev(entry, fd, &vectors_[slot], 1, offset);
    io_uring_sqe_set_data64(entry, slot);
    int result = 0;
    do {
      result = functions_.submit(&ring_);
    } while (result == -EINTR);
    return result == 1 ? absl::OkStatus()
                       : ErrnoStatus(result < 0 ? -result : EAGAIN, "cannot write (io_uring)");
  }

  absl::StatusOr<Ended> Wait() override {
    io_uring_cqe* entry = nullptr;
    int result = 0;
    do {
      result = functions_.get_cqe(&ring_, &entry, /*submit=*/0, /*wait_nr=*/1, nullptr);
    } while (result == -EINTR);
    if (result < 0) {
      return ErrnoStatus(-result, "cannot wait for a write (io_uring)");
    }
    const Ended ended = {static_cast<size_t>(io_uring_cqe_get_data64(entry)), entry->res};
    io_uring_cqe_seen(&ring_, entry);
    return ended;
  }

 private:
  const UringFunctions& functions_;
  io_uring ring_ = {};
  bool open_ = false;
  std::array<iovec, kWriteSlots> vectors_ = {};
};

}  // namespace

absl::StatusOr<std::unique_ptr<WriteQueue>> OpenUringQueue() {
  DT_ASSIGN_OR_RETURN(
      const UringFunctions* const functions,
      OpenOnce<UringFunctions>({"liburing.so.2"},
                               absl::UnimplementedError("liburing2 is not installed"), BindUring));
  auto queue = std::make_unique<UringQueue>(*functions);
  DT_RETURN_IF_ERROR(queue->Open());
  return queue;
}

}  // namespace dtrain::checkpoint
