#include "base/check.h"
#include "kernels/cuda/cuda_index.h"
#include "kernels/cuda/cuda_vector.cuh"
#include "kernels/optimizer/adamw_math.h"
#include "kernels/optimizer/adamw_stochastic.h"
#include "kernels/optimizer/stochastic_math.h"

namespace dtrain::kernels {
namespace {

constexpr int kThreads = 256;

struct SetFloat {
  __device__ float operator()(float x) const { return x; }
};
struct SetWordCuda {
  __device__ uint32_t operator()(uint32_t x) const { return x; }
};

struct Buffers {
  float* p;
  const float* g;
  BFloat16* m;
  BFloat16* v;
  BFloat16* out;
};

// Elements [i, i + kLanes) with a word of random bits each.
template <int kLanes, bool kCopyOut>
__device__ void Update(const Buffers& at, int64_t i, const uint32_t (&words)[kLanes],
                       const AdamWStepScalars& step) {
  Lanes<kLanes> p = LoadLanes<kLanes>(at.p + i);
  Lanes<kLanes> m = LoadLanes<kLanes>(at.m + i);
  Lanes<kLanes> v = LoadLanes<kLanes>(at.v + i);
  const Lanes<kLanes> g = LoadLanes<kLanes>(at.g + i);
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) {
    const AdamWState<float> next = AdamWElement(AdamWState<float>{p.v[lane], m.v[lane], v.v[lane]},
                                                g.v[lane], step, SetFloat{});
    p.v[lane] = next.p;
    m.v[lane] = RoundStochastic(next.m, words[lane] & 0xffffU, SetWordCuda{});
    v.v[lane] = RoundStochastic(next.v, words[lane] >> 16, SetWordCuda{});
  }
  StoreLanesWhole(at.p + i, p);
  StoreLanesWhole(at.m + i, m);
  StoreLanesWhole(at.v + i, v);
  if constexpr (kCopyOut) {
    StoreLanesWhole(at.out + i, p);
  }
}

// Each thread takes half the lanes of a run of the layout, as in DropoutKernel, because the four
// random words of a counter are for elements that are sixteen apart.
template <bool kAligned, bool kCopyOut>
__global__ void __launch_bounds__(kThreads)
    AdamWStochasticKernel(int64_t n, int64_t first, Buffers at, const AdamWStepScalars* scalars,
                          const PhiloxStream* random) {
  const AdamWStepScalars step = *scalars;
  if (step.skip != 0) {
    return;
  }
  const int64_t thread = GridElement(blockIdx.x, threadIdx.x, kThreads, 1);
  const RandomSpan span = RandomSpanOf(thread, first);
  const PhiloxStream stream = *random;
  PhiloxWords<uint32_t> lanes[kWidth];
#pragma unroll
  for (int lane = 0; lane < kWidth; ++lane) {
    lanes[lane] =
        PhiloxRun(stream, span.run, static_cast<uint32_t>(span.lane + lane), SetWordCuda{});
  }
  if (kAligned && span.whole(n, first)) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t words[kWidth];
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) {
        words[lane] = lanes[lane].word[k];
      }
      Update<kWidth, kCopyOut>(at, span.Element(k, first), words, step);
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int64_t i = span.Element(k, first);
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) {
      if (i + lane >= 0 && i + lane < n) {
        const uint32_t word[1] = {lanes[lane].word[k]};
        Update<1, kCopyOut>(at, i + lane, word, step);
      }
    }
  }
}

}  // namespace

absl::Status AdamWStochasticCuda(int64_t n, int64_t first, float* p, const float* g, BFloat16* m,
                                 BFloat16* v, BFloat16* p_bf16_or_null,
                                 const AdamWStepScalars* device_scalars,
                                 const PhiloxStream* device_stream, CudaStream stream) {
  RequireStream(stream);
  DT_CHECK_GE(first, 0);
  if (n == 0) {
    return absl::OkStatus();
  }
  const Buffers at{p, g, m, v, p_bf16_or_null};
  const bool aligned = first % kWidth == 0 && Aligned16(p, g) && Aligned16(m, v, p_bf16_or_null);
  const int64_t threads = RandomThreads(n, first);
  const unsigned blocks = GridBlocks(threads, kThreads, 1);
  if (aligned && p_bf16_or_null != nullptr) {
    AdamWStochasticKernel<true, true>
        <<<blocks, kThreads, 0, stream>>>(n, first, at, device_scalars, device_stream);
  } else if (aligned) {
    AdamWStochasticKernel<true, false>
        <<<blocks, kThreads, 0, stream>>>(n, first, at, device_scalars, device_stream);
  } else if (p_bf16_or_null != nullptr) {
    AdamWStochasticKernel<false, true>
        <<<blocks, kThreads, 0, stream>>>(n, first, at, device_scalars, device_stream);
  } else {
    AdamWStochasticKernel<false, false>
        <<<blocks, kThreads, 0, stream>>>(n, first, at, device_scalars, device_stream);
  }
  return LaunchStatus("adamw with stochastic rounding");
}

}  // namespace dtrain::kernels
