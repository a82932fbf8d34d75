#include "kernels/cuda_vector.cuh"
#include "kernels/swiglu.h"
#include "kernels/swiglu_math.h"

namespace dtrain::kernels {
namespace {

struct SetFloat {
  __device__ float operator()(float x) const { return x; }
};

template <class T>
struct ForwardBody {
  SwiGluForwardArgs<T> args;

  template <int kLanes>
  __device__ void Run(int64_t i) const {
    const Lanes<kLanes> gate = LoadLanes<kLanes>(args.gate + i);
    const Lanes<kLanes> up = LoadLanes<kLanes>(args.up + i);
    Lanes<kLanes> out;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      out.v[lane] = SwiGluElement(gate.v[lane], up.v[lane], SetFloat{});
    }
    StoreLanes(args.out + i, out);
  }
};

template <class T>
struct BackwardBody {
  SwiGluBackwardArgs<T> args;

  template <int kLanes>
  __device__ void Run(int64_t i) const {
    const Lanes<kLanes> gate = LoadLanes<kLanes>(args.gate + i);
    const Lanes<kLanes> up = LoadLanes<kLanes>(args.up + i);
    const Lanes<kLanes> dout = LoadLanes<kLanes>(args.dout + i);
    Lanes<kLanes> dgate;
    Lanes<kLanes> dup;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      const SwiGluGradient<float> gradient =
          SwiGluElementBackward(gate.v[lane], up.v[lane], dout.v[lane], SetFloat{});
      dgate.v[lane] = gradient.gate;
      dup.v[lane] = gradient.up;
    }
    StoreLanes(args.dgate + i, dgate);
    StoreLanes(args.dup + i, dup);
  }
};

template <class T>
absl::Status Forward(const SwiGluForwardArgs<T>& args, CudaStream stream) {
  const bool aligned = Aligned16(args.gate, args.up, args.out);
  return LaunchElementwise("swiglu forward", args.count, aligned, ForwardBody<T>{args}, stream);
}

template <class T>
absl::Status Backward(const SwiGluBackwardArgs<T>& args, CudaStream stream) {
  const bool aligned = Aligned16(args.gate, args.up, args.dout, args.dgate, args.dup);
  return LaunchElementwise("swiglu backward", args.count, aligned, BackwardBody<T>{args}, stream);
}

}  // namespace

absl::Status SwiGluForwardCuda(const SwiGluForwardArgs<float>& args, CudaStream stream) {
  return Forward(args, stream);
}
absl::Status SwiGluForwardCuda(const SwiGluForwardArgs<BFloat16>& args, CudaStream stream) {
  return Forward(args, stream);
}
absl::Status SwiGluBackwardCuda(const SwiGluBackwardArgs<float>& args, CudaStream stream) {
  return Backward(args, stream);
}
absl::Status SwiGluBackwardCuda(const SwiGluBackwardArgs<BFloat16>& args, CudaStream stream) {
  return Backward(args, stream);
}

}  // namespace dtrain::kernels
