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

class Following final : public comm::WorkState {
 public:
  absl::Status Wait(Deadline deadline) override {
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

  void Run(const comm::Work& first, const std::function<void()>& then) {
    absl::Status status = first.Wait();
    const int64_t start = Clock::Real().MonotonicNanos();
    const absl::Cleanup end = [&] {  // Also of one that throws, which the worker catches.
      const std::lock_guard lock(mutex_);
      status_ = status;
      nanos_ = first.DurationNanos() + Clock::Real().MonotonicNanos() - start;
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
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  absl::Status status_;
  int64_t nanos_ = 0;  // Of both; 0 until done.
};

}  // namespace

comm::Work FollowWith(const comm::Work& first, Worker& worker, std::function<void()> then) {
  auto state = std::make_shared<Following>();
  worker.Submit([state, first, then = std::move(then)] { state->Run(first, then); });
  return comm::Work(std::move(state));
}

}  // namespace dtrain
