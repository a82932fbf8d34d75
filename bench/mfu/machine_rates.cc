#include "bench/mfu/machine_rates.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "base/clock.h"

namespace dtrain::bench {
namespace {

constexpr int kRounds = 5;

// The device has done what was queued: reading a number waits for it.
void Wait(const at::Tensor& result) { result.view({-1})[0].item(); }

template <typename Function>
double Seconds(const at::Tensor& result, Function function) {
  const int64_t start = Clock::Real().MonotonicNanos();
  function();
  if (!result.is_cpu()) {
    Wait(result);
  }
  return static_cast<double>(Clock::Real().MonotonicNanos() - start) * 1e-9;
}

at::Tensor Random(at::IntArrayRef shape, const at::Device& device, at::ScalarType type,
                  at::Generator& generator) {
  return at::randn(shape, generator, at::TensorOptions().dtype(at::kFloat))
      .to(device, type, /*non_blocking=*/false);
}

// c = a b, of FP8 codes with b's columns one after the other, as its units want them.
void MultiplyInto(at::Tensor& c, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat8_e4m3fn) {
    const at::Tensor one = at::ones({}, a.options().dtype(at::kFloat));
    at::_scaled_mm_out(c, a, b.t(), one, one, /*bias=*/{}, /*scale_result=*/{}, c.scalar_type(),
                       /*use_fast_accum=*/true);
  } else {
    at::mm_out(c, a, b);
  }
}

// FLOP/s of products of one size; several are queued on a GPU, so that waiting weighs nothing.
double GemmRate(int64_t size, const at::Device& device, at::ScalarType type,
                at::Generator& generator, double& slowest_s) {
  const at::Tensor a = Random({size, size}, device, type, generator);
  const at::Tensor b = Random({size, size}, device, type, generator);
  const bool fp8 = type == at::kFloat8_e4m3fn;
  at::Tensor c = at::empty({size, size}, a.options().dtype(fp8 ? at::kBFloat16 : type));
  MultiplyInto(c, a, b);  // Warm-up.
  const int calls = device.is_cpu() ? 1 : 20;
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const double seconds = Seconds(c,
                                   [&] {
                                     for (int i = 0; i < calls; ++i) {
                                       MultiplyInto(c, a, b);
                                     }
                                   }) /
                           calls;
    best = std::min(best, seconds);
    slowest_s = std::max(slowest_s, seconds);
  }
  return 2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size) /
         best;
}

double CopyRate(const at::Device& device, at::Generator& generator) {
  const int64_t elements = (device.is_cpu() ? int64_t{64} : int64_t{1024}) << 18;  // 64 MiB, 1 GiB.
  const at::Tensor from = Random({elements}, device, at::kFloat, generator);
  at::Tensor to = at::empty_like(from);
  to.copy_(from);
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    best = std::min(best, Seconds(to, [&] { to.copy_(from); }));
  }
  return 8.0 * static_cast<double>(elements) / best;
}

}  // namespace

MachineRates MeasureRates(const at::Device& device, at::ScalarType type, double seconds) {
  const at::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(1);
  MachineRates rates;
  const int64_t largest = device.is_cpu() ? 4096 : 8192;
  double taken_s = 0;
  for (int64_t size = device.is_cpu() ? 256 : 2048; size <= largest; size *= 2) {
    // The next size takes eight times as long; a type without instructions stops early.
    if (8 * taken_s * (kRounds + 1) > seconds) {
      break;
    }
    taken_s = 0;
    const double rate = GemmRate(size, device, type, generator, taken_s);
    if (rate > rates.gemm_flops_per_s) {
      rates.gemm_flops_per_s = rate;
      rates.gemm_size = size;
    }
  }
  rates.copy_bytes_per_s = CopyRate(device, generator);
  return rates;
}

MachineRates Best(const MachineRates& a, const MachineRates& b) {
  MachineRates best = a.gemm_flops_per_s >= b.gemm_flops_per_s ? a : b;
  best.copy_bytes_per_s = std::max(a.copy_bytes_per_s, b.copy_bytes_per_s);
  return best;
}

}  // namespace dtrain::bench
