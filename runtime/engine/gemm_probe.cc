#include "runtime/engine/gemm_probe.h"

#include <algorithm>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "base/clock.h"
#include "runtime/engine/transaction.h"

namespace dtrain {
namespace {

void Finish(const Device& device) {
  if (!device.is_host()) {
    device.Synchronize().IgnoreError();
  }
}

// FLOP/s of the best of three products; `seconds`: of one.
double RateOf(const Device& device, int64_t size, at::ScalarType type, double& seconds) {
  const CpuRngSnapshot rng;  // The probe must not change what the run draws.
  const at::Tensor a = at::randn({size, size}).to(device.tensors(), type);
  const at::Tensor b = at::randn({size, size}).to(device.tensors(), type);
  rng.Restore();
  at::Tensor c = at::mm(a, b);  // Warm-up.
  Finish(device);
  seconds = 1e9;
  for (int round = 0; round < 3; ++round) {
    const int64_t start = Clock::Real().MonotonicNanos();
    at::mm_out(c, a, b);
    Finish(device);
    seconds = std::min(seconds, static_cast<double>(Clock::Real().MonotonicNanos() - start) * 1e-9);
  }
  return 2.0 * static_cast<double>(size * size * size) / seconds;
}

}  // namespace

double MeasureGemmRate(const Device& device, at::ScalarType type) {
  constexpr double kProductSecondsMax = 0.01;
  const at::NoGradGuard no_grad;
  double rate = 0;
  double seconds = 0;
  // A 2-byte type without instructions of its own is hundreds of times slower than fp32.
  const int64_t largest = device.is_host() ? 1024 : 8192;  // A GPU is not full before.
  for (int64_t size = 256; size <= largest && seconds < kProductSecondsMax; size *= 2) {
    rate = std::max(rate, RateOf(device, size, type, seconds));
  }
  return rate;
}

}  // namespace dtrain
