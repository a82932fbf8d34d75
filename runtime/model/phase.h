// The phases of a step: their times, and ranges that profilers show.
#pragma once

#include <cstdint>

#include "ATen/record_function.h"
#include "base/clock.h"
#include "runtime/model/nvtx_range.h"

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

// The same, as a range `name` ("dtrain::forward") of LibTorch's profiler and of NVTX. Costs next to
// nothing while nobody listens. REQUIRES: `name` is a literal.
class ScopedPhase {
 public:
  ScopedPhase(const char* name, double& seconds)
      : nvtx_(name), range_(at::RecordScope::USER_SCOPE), seconds_(seconds) {
    if (range_.isActive()) {
      range_.before(name);
    }
  }

 private:
  const NvtxRange nvtx_;
  at::RecordFunction range_;
  const ScopedSeconds seconds_;
};

}  // namespace dtrain
