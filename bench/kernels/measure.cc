#include "bench/kernels/measure.h"

#include <bit>
#include <chrono>
#include <cmath>

#include "kernels/flat.h"

namespace dtrain::bench {
namespace {

constexpr double kProbeDriftMax = 0.10;

volatile float g_sink;  // Keeps the probe's reads.

template <class Function>
double Seconds(Function function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Between the cases every stream holds small normal values again, read as fp32 or as bf16: no
// denormal, no overflow. Each has a bit of its own, so that no probe's XOR of some is zero.
void Refill(Arena& arena, const Threads& threads) {
  for (int stream = 0; stream < kStreamsMax; ++stream) {
    kernels::FillCpu(arena.elements, std::bit_cast<float>(0x3c003c00U | 0x00010001U << stream),
                     {arena.Stream<float>(stream), DType::kFloat32}, threads);
  }
  std::fill(arena.mean.begin(), arena.mean.end(), 0.0F);
  std::fill(arena.rstd.begin(), arena.rstd.end(), 1.0F);
}

}  // namespace

bool RoundTimes::steady() const {
  return std::abs(probe_before_s - probe_after_s) <=
         kProbeDriftMax * std::min(probe_before_s, probe_after_s);
}

Measured::Measured(const Case& bench_case, int threads, Arena& arena)
    : case_(&bench_case), threads_{threads} {
  Refill(arena, threads_);
  double plain = 1e9;
  double non_temporal = 1e9;
  for (int i = 0; i < 3; ++i) {
    plain = std::min(plain, ProbeSeconds(arena, false));
    non_temporal = std::min(non_temporal, ProbeSeconds(arena, true));
  }
  non_temporal_ = non_temporal < plain;
  Refill(arena, threads_);
  case_->run(arena, threads_);
}

RoundTimes Measured::Round(Arena& arena) const {
  // Each begins with the caches that Refill leaves: nothing of its streams' beginnings is in them.
  RoundTimes times;
  Refill(arena, threads_);
  times.probe_before_s = ProbeSeconds(arena, non_temporal_);
  Refill(arena, threads_);
  times.kernel_s = Seconds([&] { case_->run(arena, threads_); });
  Refill(arena, threads_);
  times.probe_after_s = ProbeSeconds(arena, non_temporal_);
  return times;
}

double Measured::ProbeSeconds(const Arena& arena, bool non_temporal) const {
  const ProbeStreams streams{arena.base, arena.stride};
  return Seconds([&] {
    threads_(arena.elements, 32, [&](int64_t begin, int64_t end) {
      g_sink = Probe(case_->mix, streams, non_temporal, begin, end);
    });
  });
}

}  // namespace dtrain::bench
