#include "kernels/cuda/cuda_vector.cuh"
#include "kernels/optimizer/muon.h"
#include "kernels/optimizer/muon_math.h"

namespace dtrain::kernels {
namespace {

struct SetFloat {
  __device__ float operator()(float x) const { return x; }
};

struct DirectionBody {
  const float* g;
  float* s;
  float* direction;
  const MuonStepScalars* scalars;

  template <int kLanes>
  __device__ void Run(int64_t i) const {
    const MuonStepScalars step = *scalars;
    if (step.skip != 0) {
      return;
    }
    const Lanes<kLanes> lanes_g = LoadLanes<kLanes>(g + i);
    Lanes<kLanes> lanes_s = LoadLanes<kLanes>(s + i);
    Lanes<kLanes> out;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      const OneState<float> next =
          MuonDirectionElement(lanes_s.v[lane], lanes_g.v[lane], step, SetFloat{});
      lanes_s.v[lane] = next.s;
      out.v[lane] = next.p;
    }
    StoreLanes(s + i, lanes_s);
    StoreLanes(direction + i, out);
  }
};

template <bool kCopyOut>
struct ApplyBody {
  float* p;
  const float* direction;
  BFloat16* out;
  double scale;
  const MuonStepScalars* scalars;

  template <int kLanes>
  __device__ void Run(int64_t i) const {
    const MuonStepScalars step = *scalars;
    if (step.skip != 0) {
      return;
    }
    const auto along = static_cast<float>(step.lr * scale);
    Lanes<kLanes> lanes_p = LoadLanes<kLanes>(p + i);
    const Lanes<kLanes> lanes_d = LoadLanes<kLanes>(direction + i);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes_p.v[lane] =
          MuonApplyElement(lanes_p.v[lane], lanes_d.v[lane], along, step.decay, SetFloat{});
    }
    StoreLanes(p + i, lanes_p);
    if constexpr (kCopyOut) {
      StoreLanes(out + i, lanes_p);
    }
  }
};

}  // namespace

absl::Status MuonDirectionCuda(int64_t n, const float* g, float* s, float* direction,
                               const MuonStepScalars* device_scalars, CudaStream stream) {
  return LaunchElementwise("muon direction", n, Aligned16(g, s, direction),
                           DirectionBody{g, s, direction, device_scalars}, stream);
}

absl::Status MuonApplyCuda(int64_t n, float* p, const float* direction, BFloat16* p_bf16_or_null,
                           double scale, const MuonStepScalars* device_scalars, CudaStream stream) {
  const bool aligned = Aligned16(p, direction) && Aligned16(p_bf16_or_null);
  if (p_bf16_or_null != nullptr) {
    return LaunchElementwise("muon apply", n, aligned,
                             ApplyBody<true>{p, direction, p_bf16_or_null, scale, device_scalars},
                             stream);
  }
  return LaunchElementwise("muon apply", n, aligned,
                           ApplyBody<false>{p, direction, nullptr, scale, device_scalars}, stream);
}

}  // namespace dtrain::kernels
