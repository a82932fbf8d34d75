#include "kernels/optimizer/one_state.cuh"
#include "kernels/optimizer/sgd_math.h"

namespace dtrain::kernels {
namespace {

template <bool kCopyOut>
struct PlainSgdBody {
  float* p;
  const float* g;
  BFloat16* out;
  const SgdStepScalars* scalars;

  template <int kLanes>
  __device__ void Run(int64_t i) const {
    const SgdStepScalars step = *scalars;
    if (step.skip != 0) {
      return;
    }
    Lanes<kLanes> lanes_p = LoadLanes<kLanes>(p + i);
    const Lanes<kLanes> lanes_g = LoadLanes<kLanes>(g + i);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes_p.v[lane] = PlainSgdElement(lanes_p.v[lane], lanes_g.v[lane], step, SetOneFloat{});
    }
    StoreLanes(p + i, lanes_p);
    if constexpr (kCopyOut) {
      StoreLanes(out + i, lanes_p);
    }
  }
};

}  // namespace

absl::Status SgdCuda(int64_t n, float* p, const float* g, MutableFlat momentum,
                     BFloat16* p_bf16_or_null, const SgdStepScalars* device_scalars,
                     CudaStream stream) {
  if (momentum.data != nullptr) {
    return LaunchOneState<SgdRule>("sgd", n, p, g, momentum, p_bf16_or_null, device_scalars,
                                   stream);
  }
  const bool aligned = Aligned16(p, g) && Aligned16(p_bf16_or_null);
  if (p_bf16_or_null != nullptr) {
    return LaunchElementwise("sgd", n, aligned,
                             PlainSgdBody<true>{p, g, p_bf16_or_null, device_scalars}, stream);
  }
  return LaunchElementwise("sgd", n, aligned,
                           PlainSgdBody<false>{p, g, p_bf16_or_null, device_scalars}, stream);
}

}  // namespace dtrain::kernels
