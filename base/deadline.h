// A point in a Clock's time after which a wait gives up. Every wait of dtrain takes one.
//
// A value; copy it freely. REQUIRES: the clock outlives it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/time/time.h"
#include "base/clock.h"

namespace dtrain {

class Deadline {
 public:
  // `timeout` from now; absl::InfiniteDuration() never expires.
  static Deadline After(absl::Duration timeout, Clock& clock = Clock::Real()) {
    if (timeout == absl::InfiniteDuration()) {
      return Deadline(&clock, std::numeric_limits<int64_t>::max());
    }
    return Deadline(&clock, clock.MonotonicNanos() + absl::ToInt64Nanoseconds(timeout));
  }
  static Deadline Infinite() { return After(absl::InfiniteDuration()); }

  bool infinite() const { return at_nanos_ == std::numeric_limits<int64_t>::max(); }
  bool Expired() const { return !infinite() && clock_->MonotonicNanos() >= at_nanos_; }
  // Time left, never negative; InfiniteDuration when it never expires.
  absl::Duration Remaining() const {
    if (infinite()) {
      return absl::InfiniteDuration();
    }
    return absl::Nanoseconds(std::max<int64_t>(0, at_nanos_ - clock_->MonotonicNanos()));
  }
  // The timeout for poll(2): time left in ms rounded up, at most `cap_ms`, and never -1 (for ever).
  int PollTimeoutMs(int cap_ms = 1000) const {
    const absl::Duration left = std::min(Remaining(), absl::Milliseconds(cap_ms));
    return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
  }
  // The earlier of the two.
  friend Deadline Earlier(const Deadline& a, const Deadline& b) {
    return a.at_nanos_ <= b.at_nanos_ ? a : b;
  }

 private:
  Deadline(Clock* clock, int64_t at_nanos) : clock_(clock), at_nanos_(at_nanos) {}
  Clock* clock_;
  int64_t at_nanos_;
};

}  // namespace dtrain
