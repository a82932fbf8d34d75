#include "runtime/engine/gemm_probe.h"

#include <algorithm>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "base/clock.h"
#include "runtime/engine/transaction.h"

namespace dtrain {
namespace {

// FLOP/s of the best of three products; `seconds`: of one.
double RateOf(int64_t size, at::ScalarType type, double& seconds) {
  const CpuRngSnapshot rng;  // The probe must not change what the run draws.
  const at::Tensor a = at::randn({size, size}).to(type);
  const at::Tensor b = at::randn({size, size}).to(type);
  rng.Restore();
  at::Tensor c = at::mm(a, b);  // Warm-up.
  seconds = 1e9;
  for (int round = 0; round < 3; ++round) {
    const int64_t start = Clock::Real().MonotonicNanos();
    at::mm_out(c, a, b);
    seconds = std::min(seconds, static_cast<double>(Clock::Real().MonotonicNanos() - start) * 1e-9);
  }
  return 2.0 * static_cast<double>(size * size * size) / seconds;
}

}  // namespace

double MeasureGemmRate(at::ScalarType type) {
  constexpr double kProductSecondsMax = 0.01;
  const at::NoGradGuard no_grad;
  double rate = 0;
  double seconds = 0;
  // A 2-byte type without instructions of its own is hundreds of times slower than fp32.
  for (int64_t size = 256; size <= 1024 && seconds < kProductSecondsMax; size *= 2) {
    rate = std::max(rate, RateOf(size, type, seconds));
  }
  return rate;
}

}  // namespace dtrain
