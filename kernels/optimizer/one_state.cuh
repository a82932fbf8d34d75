// Optimizers with one state as CUDA kernels. Private to this room's .cu files.
#pragma once

#include "kernels/cuda/cuda_vector.cuh"
#include "kernels/flat.h"
#include "kernels/optimizer/one_state.h"

namespace dtrain::kernels {

struct SetOneFloat {
  __device__ float operator()(float x) const { return x; }
};

template <class Rule, class Scalars, class S, bool kCopyOut>
struct OneStateBody {
  float* p;
  const float* g;
  S* s;
  BFloat16* out;
  const Scalars* scalars;

  template <int kLanes>
  __device__ void Run(int64_t i) const {
    const Scalars step = *scalars;
    if (step.skip != 0) {
      return;
    }
    Lanes<kLanes> lanes_p = LoadLanes<kLanes>(p + i);
    Lanes<kLanes> lanes_s = LoadLanes<kLanes>(s + i);
    const Lanes<kLanes> lanes_g = LoadLanes<kLanes>(g + i);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      const OneState<float> next = Rule::Element(OneState<float>{lanes_p.v[lane], lanes_s.v[lane]},
                                                 lanes_g.v[lane], step, SetOneFloat{});
      lanes_p.v[lane] = next.p;
      lanes_s.v[lane] = next.s;
    }
    StoreLanes(p + i, lanes_p);
    StoreLanes(s + i, lanes_s);
    if constexpr (kCopyOut) {
      StoreLanes(out + i, lanes_p);
    }
  }
};

template <class Rule, class S, class Scalars>
absl::Status LaunchOneStateOf(const char* name, int64_t n, float* p, const float* g, S* s,
                              BFloat16* out, const Scalars* scalars, CudaStream stream) {
  const bool aligned = Aligned16(p, g, s) && Aligned16(out);
  if (out != nullptr) {
    return LaunchElementwise(name, n, aligned,
                             OneStateBody<Rule, Scalars, S, true>{p, g, s, out, scalars}, stream);
  }
  return LaunchElementwise(name, n, aligned,
                           OneStateBody<Rule, Scalars, S, false>{p, g, s, out, scalars}, stream);
}

// REQUIRES: a state of fp32 or bf16.
template <class Rule, class Scalars>
absl::Status LaunchOneState(const char* name, int64_t n, float* p, const float* g,
                            MutableFlat state, BFloat16* out, const Scalars* scalars,
                            CudaStream stream) {
  return state.dtype == DType::kBFloat16
             ? LaunchOneStateOf<Rule>(name, n, p, g, static_cast<BFloat16*>(state.data), out,
                                      scalars, stream)
             : LaunchOneStateOf<Rule>(name, n, p, g, static_cast<float*>(state.data), out, scalars,
                                      stream);
}

}  // namespace dtrain::kernels
