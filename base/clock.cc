#include "base/clock.h"

#include <ctime>

#include "absl/time/clock.h"

namespace dtrain {
namespace {
class RealClock final : public Clock {
 public:
  int64_t MonotonicNanos() const override {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
  }
  absl::Time WallTime() const override { return absl::Now(); }
  void Sleep(absl::Duration duration) override { absl::SleepFor(duration); }
};
}  // namespace

Clock& Clock::Real() {
  static auto* const clock = new RealClock;
  return *clock;
}

}  // namespace dtrain
