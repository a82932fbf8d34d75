#include "runtime/engine/gemm_probe.h"

#include <algorithm>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "base/clock.h"
#include "runtime/engine/transaction.h"

namespace dtrain {

double MeasureGemmRate() {
  constexpr int64_t kSize = 1024;
  const at::NoGradGuard no_grad;
  const CpuRngSnapshot rng;  // The probe must not change what the run draws.
  const at::Tensor a = at::randn({kSize, kSize});
  const at::Tensor b = at::randn({kSize, kSize});
  rng.Restore();
  at::Tensor c = at::mm(a, b);  // Warm-up.
  double best_s = 1e9;
  for (int round = 0; round < 3; ++round) {
    const int64_t start = Clock::Real().MonotonicNanos();
    at::mm_out(c, a, b);
    best_s = std::min(best_s, static_cast<double>(Clock::Real().MonotonicNanos() - start) * 1e-9);
  }
  return 2.0 * kSize * kSize * kSize / best_s;
}

}  // namespace dtrain
