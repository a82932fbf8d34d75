#include "runtime/shard/following_work.h"

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "comm/work_state.h"

namespace dtrain {
namespace {

// Not infinite, so that the group neither spins nor leaves the work to the thread that waits: it is
// beside those that compute. The group's own limit of a call is far below.
constexpr absl::Duration kAside = absl::Hours(24 * 365);

class Following final : public comm::WorkState {
 public:
  explicit Following(const comm::Work& first) : first_(first) {}
  absl::Status Wait(Deadline deadline) override {
    if (deadline.infinite()) {  // Somebody who computes: now the group may hurry.
      first_.Wait().IgnoreError();
    }
    std::unique_lock lock(mutex_);
    const auto done = [this] { return done_; };
    if (deadline.infinite()) {
      ended_.wait(lock, done);
    } else if (!ended_.wait_for(lock, absl::ToChronoNanoseconds(deadline.Remaining()), done)) {
      return absl::DeadlineExceededError("what follows a collective is not over yet");
    }
    return status_;
  }
  bool Done() const override {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  int64_t DurationNanos() const override {
    const std::lock_guard lock(mutex_);
    return nanos_;
  }

  void Run(const std::function<void()>& then) {
    absl::Status status = first_.Wait(Deadline::After(kAside));
    const int64_t start = Clock::Real().MonotonicNanos();
    const absl::Cleanup end = [&] {  // Also of one that throws, which the worker catches.
      const std::lock_guard lock(mutex_);
      status_ = status;
      nanos_ = first_.DurationNanos() + Clock::Real().MonotonicNanos() - start;
      done_ = true;
      ended_.notify_all();
    };
    if (status.ok()) {
      status = absl::InternalError("what follows a collective threw an exception");
      then();
      status = absl::OkStatus();
    }
  }

 private:
  const comm::Work first_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  absl::Status status_;
  int64_t nanos_ = 0;  // Of both; 0 until done.
};

}  // namespace

comm::Work FollowWith(const comm::Work& first, Worker& worker, std::function<void()> then) {
  auto state = std::make_shared<Following>(first);
  worker.Submit([state, then = std::move(then)] { state->Run(then); });
  return comm::Work(std::move(state));
}

}  // namespace dtrain
