#include "kernels/cuda/cuda_vector.cuh"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/adamw_math.h"

namespace dtrain::kernels {
namespace {

struct SetFloat {
  __device__ float operator()(float x) const { return x; }
};

template <class G, class S, bool kCopyOut>
struct AdamWBody {
  float* p;
  const G* g;
  S* m;
  S* v;
  BFloat16* out;
  const AdamWStepScalars* scalars;

  template <int kLanes>
  __device__ void Run(int64_t i) const {
    const AdamWStepScalars step = *scalars;
    if (step.skip != 0) {
      return;
    }
    Lanes<kLanes> lanes_p = LoadLanes<kLanes>(p + i);
    Lanes<kLanes> lanes_m = LoadLanes<kLanes>(m + i);
    Lanes<kLanes> lanes_v = LoadLanes<kLanes>(v + i);
    const Lanes<kLanes> lanes_g = LoadLanes<kLanes>(g + i);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      const AdamWState<float> next =
          AdamWElement(AdamWState<float>{lanes_p.v[lane], lanes_m.v[lane], lanes_v.v[lane]},
                       lanes_g.v[lane], step, SetFloat{});
      lanes_p.v[lane] = next.p;
      lanes_m.v[lane] = next.m;
      lanes_v.v[lane] = next.v;
    }
    StoreLanes(p + i, lanes_p);
    StoreLanes(m + i, lanes_m);
    StoreLanes(v + i, lanes_v);
    if constexpr (kCopyOut) {
      StoreLanes(out + i, lanes_p);
    }
  }
};

template <class G, class S>
absl::Status Launch(const char* name, int64_t n, float* p, const G* g, S* m, S* v, BFloat16* out,
                    const AdamWStepScalars* scalars, CudaStream stream) {
  const bool aligned = Aligned16(p, m, v) && Aligned16(g, out);
  if (out != nullptr) {
    return LaunchElementwise(name, n, aligned, AdamWBody<G, S, true>{p, g, m, v, out, scalars},
                             stream);
  }
  return LaunchElementwise(name, n, aligned, AdamWBody<G, S, false>{p, g, m, v, out, scalars},
                           stream);
}

}  // namespace

absl::Status AdamWCuda(int64_t n, float* p, const float* g, float* m, float* v,
                       BFloat16* p_bf16_or_null, const AdamWStepScalars* device_scalars,
                       CudaStream stream) {
  return Launch("adamw", n, p, g, m, v, p_bf16_or_null, device_scalars, stream);
}

absl::Status AdamWCudaBf16Grad(int64_t n, float* p, const BFloat16* g, float* m, float* v,
                               BFloat16* p_bf16_or_null, const AdamWStepScalars* device_scalars,
                               CudaStream stream) {
  return Launch("adamw bf16", n, p, g, m, v, p_bf16_or_null, device_scalars, stream);
}

absl::Status AdamWCudaBf16State(int64_t n, float* p, const float* g, BFloat16* m, BFloat16* v,
                                BFloat16* p_bf16_or_null, const AdamWStepScalars* device_scalars,
                                CudaStream stream) {
  return Launch("adamw bf16 state", n, p, g, m, v, p_bf16_or_null, device_scalars, stream);
}

}  // namespace dtrain::kernels
