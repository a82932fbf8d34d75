// Counts the pieces of long work, such as the blocks of a checkpoint that is read, so that whoever
// waits for it can tell work that goes on from work that hangs.
//
// The work does not know who counts: Note counts for the WorkCount of its thread, and does nothing
// where there is none. Thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/time/time.h"
#include "base/clock.h"

namespace dtrain {

class WorkCount {
 public:
  WorkCount() = default;
  WorkCount(const WorkCount&) = delete;
  WorkCount& operator=(const WorkCount&) = delete;

  uint64_t done() const { return done_.load(std::memory_order_relaxed); }
  // Whether a piece was done since done() was `seen`, which becomes what it is now, or the time of
  // Allow has not passed.
  bool GetsOn(uint64_t& seen) const {
    const uint64_t now = done();
    const bool is_allowed =
        Clock::Real().MonotonicNanos() < allowed_until_.load(std::memory_order_relaxed);
    return now != std::exchange(seen, now) || is_allowed;
  }

  // A piece of this thread's work is done.
  static void Note() {
    if (of_thread_ != nullptr) {
      of_thread_->done_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  // The piece that this thread does now has a limit of its own, within which nobody sees it get on.
  static void Allow(absl::Duration time) {
    if (of_thread_ != nullptr) {
      const int64_t until = Clock::Real().MonotonicNanos() + absl::ToInt64Nanoseconds(time);
      std::atomic<int64_t>& allowed = of_thread_->allowed_until_;
      allowed.store(std::max(allowed.load(std::memory_order_relaxed), until),
                    std::memory_order_relaxed);
    }
  }
  // The one of this thread, for threads that do a part of its work. Null: nobody counts.
  static WorkCount* OfThread() { return of_thread_; }

  // While it lives, this thread's work is counted by `count`, which may be null.
  class Scope {
   public:
    explicit Scope(WorkCount* count) : outer_(std::exchange(of_thread_, count)) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { of_thread_ = outer_; }

   private:
    WorkCount* const outer_;
  };

 private:
  static inline thread_local WorkCount* of_thread_ = nullptr;

  std::atomic<uint64_t> done_{0};
  std::atomic<int64_t> allowed_until_{0};
};

}  // namespace dtrain
