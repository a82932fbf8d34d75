#include "runtime/engine/record/gemm_probe.h"

#include <algorithm>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "base/clock.h"
#include "runtime/model/cpu_rng.h"

namespace dtrain {
namespace {

constexpr int64_t kSmallest = 256;
constexpr int64_t kLargestOnHost = 1024;
constexpr int64_t kLargestOnGpu = 8192;  // It is not full before.
constexpr int64_t kDrawnMax = int64_t{1} << 20;
constexpr double kProductSecondsMax = 0.01;

double Since(int64_t start) {
  return static_cast<double>(Clock::Real().MonotonicNanos() - start) * 1e-9;
}

double FlopOf(int64_t size) { return 2.0 * static_cast<double>(size * size * size); }

// A GPU's clock depends on the operands' bits, which are random there: as many as the host draws in
// some milliseconds, again and again. On the host nothing does, and random numbers would take as
// long as the product.
at::Tensor Operand(const Device& device, int64_t size, at::ScalarType type) {
  if (device.is_host()) {
    return at::linspace(-1, 1, size * size, at::TensorOptions(at::kFloat))
        .view({size, size})
        .to(type);
  }
  const CpuRngSnapshot rng;  // The probe must not change what the run draws.
  const int64_t drawn = std::min(size * size, kDrawnMax);  // Both are powers of two.
  const at::Tensor numbers = at::randn({drawn}).to(device.tensors(), type);
  rng.Restore();
  return numbers.repeat({size * size / drawn}).view({size, size});
}

// Seconds of the fastest of `rounds` products.
double ProductSeconds(const Device& device, int64_t size, at::ScalarType type, int rounds,
                      bool warm_up) {
  const auto finish = [&device] {
    if (!device.is_host()) {
      device.Synchronize().IgnoreError();
    }
  };
  const at::Tensor a = Operand(device, size, type);
  // Transposed, as the weights of linear layers are. Without instructions for bf16 or fp16 a CPU is
  // ten times slower with other matrices, and steps would seem faster than products.
  const at::Tensor b = Operand(device, size, type).t();
  at::Tensor c = at::zeros({size, size}, a.options());  // Its pages are there.
  if (warm_up) {
    at::mm_out(c, a, b);
  }
  finish();
  double fastest = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const int64_t start = Clock::Real().MonotonicNanos();
    at::mm_out(c, a, b);
    finish();
    fastest = std::min(fastest, Since(start));
  }
  return std::max(fastest, 1e-9);
}

}  // namespace

GemmTiming MeasureGemmRate(const Device& device, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  GemmTiming timing;
  double seconds = 0;
  // No product that takes much longer: eight times the work is in the next one. A 2-byte type
  // without instructions of its own is hundreds of times slower than fp32.
  const int64_t largest = device.is_host() ? kLargestOnHost : kLargestOnGpu;
  for (int64_t size = kSmallest; size <= largest && 8 * seconds < kProductSecondsMax; size *= 2) {
    seconds = ProductSeconds(device, size, type, /*rounds=*/3, /*warm_up=*/true);
    timing.flops_per_s = std::max(timing.flops_per_s, FlopOf(size) / seconds);
    if (size == kSmallest || seconds < kProductSecondsMax) {
      timing.size = size;
      timing.product_seconds = seconds;
      timing.repeat_seconds = 3 * seconds;  // Two products, and their operands.
    }
  }
  return timing;
}

GemmTiming RepeatGemmRate(at::ScalarType type, int64_t size) {
  const at::NoGradGuard no_grad;
  const int64_t start = Clock::Real().MonotonicNanos();
  GemmTiming timing{.size = size};
  timing.product_seconds = ProductSeconds(Device(), size, type, /*rounds=*/2, /*warm_up=*/false);
  timing.flops_per_s = FlopOf(size) / timing.product_seconds;
  timing.repeat_seconds = Since(start);
  return timing;
}

void GemmProbe::AfterStep(double seconds) {
  if (++steps_ <= kGemmProbeStep) {
    if (steps_ == kGemmProbeStep) {
      Take(measures_.first());
    }
    return;
  }
  trained_s_ += seconds;
  if (measures_.repeat != nullptr && cost_s_ <= kShareMax * trained_s_) {
    trained_s_ = 0;
    Take(measures_.repeat(size_));
  }
}

void GemmProbe::Take(const GemmTiming& timing) {
  rate_ = std::max(rate_, timing.flops_per_s);
  size_ = timing.size;
  cost_s_ = timing.repeat_seconds;
  // On a busy machine the first one may have stopped at small matrices, whose rate is lower.
  if (size_ < kLargestOnHost && 8 * timing.product_seconds < kProductSecondsMax) {
    size_ *= 2;
    cost_s_ *= 8;
  }
}

}  // namespace dtrain
