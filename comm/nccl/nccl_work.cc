#include "comm/nccl/nccl_work.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace dtrain::comm {
namespace {

class Waiting {
 public:
  explicit Waiting(NcclWaiters* waiters) : waiters_(waiters) { Count(1); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() { Count(-1); }

 private:
  void Count(int more) {
    if (waiters_ != nullptr) {
      *waiters_ += more;
    }
  }
  NcclWaiters* const waiters_;
};

}  // namespace

absl::Status NcclWork::Wait(Deadline deadline) {
  const Waiting counted(waiters_.get());
  std::unique_lock lock(mutex_);
  while (!done_) {
    if (deadline.Expired()) {
      return absl::DeadlineExceededError("the collective goes on; it may be waited for again");
    }
    // The wait is bounded, so that the end of a deadline on a test's clock is noticed.
    const absl::Duration left = std::min(deadline.Remaining(), absl::Milliseconds(100));
    changed_.wait_for(lock, absl::ToChronoNanoseconds(left));
  }
  return status_;
}

void NcclWork::Finish(absl::Status status, int64_t duration_nanos) {
  std::lock_guard lock(mutex_);
  status_ = std::move(status);
  duration_nanos_ = duration_nanos;
  done_ = true;
  changed_.notify_all();
}

}  // namespace dtrain::comm
