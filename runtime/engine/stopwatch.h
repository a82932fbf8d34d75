// Where the time of a step goes.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace dtrain {

// Adds the time of its life to `seconds`.
class ScopedSeconds {
 public:
  explicit ScopedSeconds(double& seconds)
      : seconds_(seconds), start_(Clock::Real().MonotonicNanos()) {}
  ScopedSeconds(const ScopedSeconds&) = delete;
  ScopedSeconds& operator=(const ScopedSeconds&) = delete;
  ~ScopedSeconds() {
    seconds_ += static_cast<double>(Clock::Real().MonotonicNanos() - start_) * 1e-9;
  }

 private:
  double& seconds_;
  const int64_t start_;
};

}  // namespace dtrain
