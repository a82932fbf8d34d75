// dtrain's optimizer kernels for bench/optimizer.py, as plain C functions over pointers. The
// library is loaded into the peers' process, so that all work on the same buffers with one pool of
// threads (LibTorch's libgomp is loaded before and serves this library too).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "bench/kernels/probe.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/grad_norm.h"
#include "kernels/simd/variant.h"

namespace {

using dtrain::BFloat16;

// Cuts as at::parallel_for does: equal parts in whole grains, one a thread.
void OnThreads(int64_t count, int64_t grain,
               absl::FunctionRef<void(int64_t begin, int64_t end)> body) {
  const int64_t grains = (count + grain - 1) / grain;
#pragma omp parallel for schedule(static)
  for (int64_t part = 0; part < grains; ++part) {
    body(part * grain, std::min(count, (part + 1) * grain));
  }
}

}  // namespace

extern "C" {

// bench/optimizer.py has the same fields in its class `Settings`.
struct AdamWSettings {
  double lr, beta1, beta2, eps, weight_decay;
  int64_t step;
};

// The path that kernels take on this CPU: "avx2", "avx512", "scalar".
const char* dt_variant() {
  static const std::string name(dtrain::kernels::ActiveVariant());
  return name.c_str();
}

// AdamW on fp32 buffers [n].
void dt_adamw(int64_t n, float* p, const float* g, float* m, float* v,
              const AdamWSettings* settings) {
  dtrain::kernels::AdamWCpu(n, p, g, m, v, nullptr,
                            {.lr = settings->lr,
                             .beta1 = settings->beta1,
                             .beta2 = settings->beta2,
                             .eps = settings->eps,
                             .weight_decay = settings->weight_decay,
                             .step = settings->step},
                            OnThreads);
}

// The whole update in mixed precision: unscale, norm, clip, finite check, AdamW on the master p,
// bf16 copy. Gives the unscaled norm; nothing is updated when it is not finite.
// scratch [NormBlocks(0, n)].
double dt_mixed_update(int64_t n, float* p, const float* g, float* m, float* v, uint16_t* copy,
                       double* scratch, double unscale, double norm_max,
                       const AdamWSettings* settings) {
  const dtrain::kernels::SquareSum squares =
      dtrain::kernels::SquareSumCpu(g, 0, n, scratch, OnThreads);
  const double norm = std::sqrt(squares.sum) * unscale;
  if (squares.finite()) {
    dtrain::kernels::AdamWCpu(n, p, g, m, v, reinterpret_cast<BFloat16*>(copy),
                              {.lr = settings->lr,
                               .beta1 = settings->beta1,
                               .beta2 = settings->beta2,
                               .eps = settings->eps,
                               .weight_decay = settings->weight_decay,
                               .grad_scale = unscale * dtrain::kernels::ClipFactor(norm, norm_max),
                               .step = settings->step},
                              OnThreads);
  }
  return norm;
}

int64_t dt_norm_blocks(int64_t n) { return dtrain::kernels::NormBlocks(0, n); }

// bench/kernels/probe.h over elements [0, n), a multiple of 16, of streams at base + k stride.
float dt_probe(int64_t n, char* base, int64_t stride, int read4, int write4, int write2,
               int in_place, int non_temporal) {
  const dtrain::bench::StreamMix mix{
      .read4 = read4, .write4 = write4, .write2 = write2, .in_place = in_place};
  volatile float sink = 0;
  OnThreads(n, int64_t{1} << 20, [&](int64_t begin, int64_t end) {
    sink = dtrain::bench::Probe(mix, {base, stride}, non_temporal != 0, begin, end);
  });
  return sink;
}

}  // extern "C"
