// The Clock seam: all waiting and all timing goes through it, so tests can drive time.
//
// Thread-safe. Monotonic time is for intervals and deadlines; wall time is for records only.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace dtrain {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds of a clock that never goes back; its origin has no meaning.
  virtual int64_t MonotonicNanos() const = 0;
  // Wall-clock time, for records.
  virtual absl::Time WallTime() const = 0;
  // Blocks for `duration` of this clock's time.
  virtual void Sleep(absl::Duration duration) = 0;

  // The process's real clock; never destroyed.
  static Clock& Real();
};

// Time that moves only when a test says so; Sleep advances it and returns at once.
class FakeClock final : public Clock {
 public:
  int64_t MonotonicNanos() const override { return now_nanos_.load(); }
  absl::Time WallTime() const override { return absl::FromUnixNanos(now_nanos_.load()); }
  void Sleep(absl::Duration duration) override { Advance(duration); }
  void Advance(absl::Duration duration) { now_nanos_ += absl::ToInt64Nanoseconds(duration); }

 private:
  std::atomic<int64_t> now_nanos_{1'000'000'000};
};

}  // namespace dtrain
