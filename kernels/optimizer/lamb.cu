#include "kernels/cuda/cuda_reduce.cuh"
#include "kernels/cuda/cuda_vector.cuh"
#include "kernels/optimizer/grad_norm.h"
#include "kernels/optimizer/lamb.h"
#include "kernels/optimizer/lamb_math.h"

namespace dtrain::kernels {
namespace {

constexpr int kThreads = 256;

struct SetFloat {
  __device__ float operator()(float x) const { return x; }
};

struct Moments {
  const float* p;
  const float* g;
  float* m;
  float* v;
  LambStepScalars step;
  PairedSquareSum weights;
  PairedSquareSum updates;

  template <int kLanes>
  __device__ void Update(int64_t i) {
    const Lanes<kLanes> lanes_p = LoadLanes<kLanes>(p + i);
    const Lanes<kLanes> lanes_g = LoadLanes<kLanes>(g + i);
    Lanes<kLanes> lanes_m = LoadLanes<kLanes>(m + i);
    Lanes<kLanes> lanes_v = LoadLanes<kLanes>(v + i);
    Lanes<kLanes> update;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      const LambMoments<float> next = LambMomentsElement(
          LambMoments<float>{lanes_m.v[lane], lanes_v.v[lane]}, lanes_g.v[lane], step, SetFloat{});
      update.v[lane] = LambUpdate(lanes_p.v[lane], next, step, SetFloat{});
      lanes_m.v[lane] = next.m;
      lanes_v.v[lane] = next.v;
    }
    weights.Add<kLanes>(lanes_p.v);
    updates.Add<kLanes>(update.v);
    StoreLanes(m + i, lanes_m);
    StoreLanes(v + i, lanes_v);
  }
};

// A block of threads for a norm block; as in grad_norm.cu the way of loading follows from the
// alignment alone.
__global__ void __launch_bounds__(kThreads)
    MomentsKernel(int64_t n, int64_t offset, Moments at, const LambStepScalars* scalars,
                  LambSums* sums) {
  __shared__ PairedSquareSum scratch[kThreads / 32];
  at.step = *scalars;
  if (at.step.skip != 0) {
    return;
  }
  at.weights = {};
  at.updates = {};
  const NormSpan span = NormSpanOf(blockIdx.x, offset, n);
  const auto misaligned = [&](const float* x) {
    return reinterpret_cast<uint64_t>(x + span.from) % 16 != 0;
  };
  const bool wide =
      !misaligned(at.p) && !misaligned(at.g) && !misaligned(at.m) && !misaligned(at.v);
  const int64_t whole = wide ? span.whole() : span.from;
  const RowStride eights = RowStrideOf(threadIdx.x, kThreads, kWidth);
  for (int64_t i = span.from + eights.first; i < whole; i += eights.step) {
    at.template Update<kWidth>(i);
  }
  const RowStride ones = RowStrideOf(threadIdx.x, kThreads, 1);
  for (int64_t i = whole + ones.first; i < span.to; i += ones.step) {
    at.template Update<1>(i);
  }
  const double weights = BlockSum(at.weights, scratch);
  const double updates = BlockSum(at.updates, scratch);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = {weights, updates};
  }
}

// One block adds the blocks' sums of a tensor, each thread every 256th, then the threads'.
__global__ void __launch_bounds__(kThreads)
    TrustKernel(const LambSums* sums, int64_t count, const LambStepScalars* scalars,
                float* trust_step) {
  __shared__ double scratch[kThreads / 32];
  LambSums sum;
  const RowStride mine = RowStrideOf(threadIdx.x, kThreads, 1);
  for (int64_t i = mine.first; i < count; i += mine.step) {
    sum.weights += sums[i].weights;
    sum.updates += sums[i].updates;
  }
  sum.weights = BlockSum(sum.weights, scratch);
  sum.updates = BlockSum(sum.updates, scratch);
  if (threadIdx.x == 0) {
    *trust_step = static_cast<float>(scalars->step_size *
                                     LambTrustOf(sum, scalars->min_coeff, scalars->max_coeff));
  }
}

template <bool kCopyOut>
struct ApplyBody {
  float* p;
  const float* m;
  const float* v;
  BFloat16* out;
  const float* trust_step;
  const LambStepScalars* scalars;

  template <int kLanes>
  __device__ void Run(int64_t i) const {
    const LambStepScalars step = *scalars;
    if (step.skip != 0) {
      return;
    }
    const float factor = *trust_step;
    Lanes<kLanes> lanes_p = LoadLanes<kLanes>(p + i);
    const Lanes<kLanes> lanes_m = LoadLanes<kLanes>(m + i);
    const Lanes<kLanes> lanes_v = LoadLanes<kLanes>(v + i);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      const LambMoments<float> moments{lanes_m.v[lane], lanes_v.v[lane]};
      lanes_p.v[lane] =
          lanes_p.v[lane] - factor * LambUpdate(lanes_p.v[lane], moments, step, SetFloat{});
    }
    StoreLanes(p + i, lanes_p);
    if constexpr (kCopyOut) {
      StoreLanes(out + i, lanes_p);
    }
  }
};

}  // namespace

absl::Status LambMomentsCuda(int64_t n, int64_t offset, const float* p, const float* g, float* m,
                             float* v, LambSums* sums, const LambStepScalars* device_scalars,
                             CudaStream stream) {
  RequireStream(stream);
  const int64_t blocks = NormBlocks(offset, n);
  if (blocks == 0) {
    return absl::OkStatus();
  }
  MomentsKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      n, offset, Moments{p, g, m, v, {}, {}, {}}, device_scalars, sums);
  return LaunchStatus("lamb moments");
}

absl::Status LambTrustCuda(const LambSums* sums, int64_t count,
                           const LambStepScalars* device_scalars, float* trust_step,
                           CudaStream stream) {
  RequireStream(stream);
  TrustKernel<<<1, kThreads, 0, stream>>>(sums, count, device_scalars, trust_step);
  return LaunchStatus("lamb trust");
}

absl::Status LambApplyCuda(int64_t n, float* p, const float* m, const float* v,
                           BFloat16* p_bf16_or_null, const float* trust_step,
                           const LambStepScalars* device_scalars, CudaStream stream) {
  const bool aligned = Aligned16(p, m, v) && Aligned16(p_bf16_or_null);
  if (p_bf16_or_null != nullptr) {
    return LaunchElementwise("lamb apply", n, aligned,
                             ApplyBody<true>{p, m, v, p_bf16_or_null, trust_step, device_scalars},
                             stream);
  }
  return LaunchElementwise("lamb apply", n, aligned,
                           ApplyBody<false>{p, m, v, nullptr, trust_step, device_scalars}, stream);
}

}  // namespace dtrain::kernels
