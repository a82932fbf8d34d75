#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/cuda/cuda_vector.cuh"
#include "kernels/layers/activation.h"
#include "kernels/layers/activation_math.h"

namespace dtrain::kernels {
namespace {

struct SetFloat {
  __device__ float operator()(float x) const { return x; }
};

template <Activation kActivation, class T>
struct ForwardBody {
  ActivationForwardArgs<T> args;

  template <int kLanes>
  __device__ void Run(int64_t i) const {
    Lanes<kLanes> x = LoadLanes<kLanes>(args.x + i);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      x.v[lane] = Activate<kActivation, T>(x.v[lane], SetFloat{}).value;
    }
    StoreLanes(args.y + i, x);
  }
};

template <Activation kActivation, class T>
struct BackwardBody {
  ActivationBackwardArgs<T> args;

  template <int kLanes>
  __device__ void Run(int64_t i) const {
    const Lanes<kLanes> x = LoadLanes<kLanes>(args.x + i);
    Lanes<kLanes> gradient = LoadLanes<kLanes>(args.dy + i);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      gradient.v[lane] *= Activate<kActivation, T>(x.v[lane], SetFloat{}).slope;
    }
    StoreLanes(args.dx + i, gradient);
  }
};

template <Activation kActivation, class T>
struct GatedForwardBody {
  GatedForwardArgs<T> args;

  template <int kLanes>
  __device__ void Run(int64_t i) const {
    const int64_t at = GatedOffset(i, args.hidden, args.stride);
    const Lanes<kLanes> gate = LoadLanes<kLanes>(args.gate + at);
    const Lanes<kLanes> up = LoadLanes<kLanes>(args.up + at);
    Lanes<kLanes> out;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      out.v[lane] = Activate<kActivation, T>(gate.v[lane], SetFloat{}).value * up.v[lane];
    }
    StoreLanes(args.out + i, out);
  }
};

template <Activation kActivation, class T>
struct GatedBackwardBody {
  GatedBackwardArgs<T> args;

  template <int kLanes>
  __device__ void Run(int64_t i) const {
    const int64_t at = GatedOffset(i, args.hidden, args.stride);
    const Lanes<kLanes> gate = LoadLanes<kLanes>(args.gate + at);
    const Lanes<kLanes> up = LoadLanes<kLanes>(args.up + at);
    const Lanes<kLanes> dout = LoadLanes<kLanes>(args.dout + i);
    Lanes<kLanes> dgate;
    Lanes<kLanes> dup;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      const GatedGradient<float> gradient =
          GatedElementBackward<kActivation, T>(gate.v[lane], up.v[lane], dout.v[lane], SetFloat{});
      dgate.v[lane] = gradient.gate;
      dup.v[lane] = gradient.up;
    }
    StoreLanes(args.dgate + at, dgate);
    StoreLanes(args.dup + at, dup);
  }
};

// Launches Body<activation, T>{args} over `count` elements.
template <template <Activation, class> class Body, class T, class Args>
absl::Status Launch(const char* name, const Args& args, int64_t count, bool aligned,
                    CudaStream stream) {
  switch (args.activation) {
    case Activation::kSilu:
      return LaunchElementwise(name, count, aligned, Body<Activation::kSilu, T>{args}, stream);
    case Activation::kGelu:
      return LaunchElementwise(name, count, aligned, Body<Activation::kGelu, T>{args}, stream);
    case Activation::kGeluTanh:
      return LaunchElementwise(name, count, aligned, Body<Activation::kGeluTanh, T>{args}, stream);
  }
  return absl::InternalError(absl::StrCat("activation ", static_cast<int>(args.activation),
                                          " is none of the enumeration"));
}

template <class T>
absl::Status Forward(const ActivationForwardArgs<T>& args, CudaStream stream) {
  return Launch<ForwardBody, T>("activation forward", args, args.count, Aligned16(args.x, args.y),
                                stream);
}

template <class T>
absl::Status Backward(const ActivationBackwardArgs<T>& args, CudaStream stream) {
  return Launch<BackwardBody, T>("activation backward", args, args.count,
                                 Aligned16(args.x, args.dy, args.dx), stream);
}

// Eight neighbouring elements are of one row, and their 16-byte words aligned.
template <class Args>
bool WholeWords(const Args& args) {
  return args.stride == args.hidden || (args.hidden % kWidth == 0 && args.stride % kWidth == 0);
}

template <class T>
absl::Status ForwardGated(const GatedForwardArgs<T>& args, CudaStream stream) {
  DT_CHECK_GE(args.stride, args.hidden);
  const bool aligned = Aligned16(args.gate, args.up, args.out) && WholeWords(args);
  return Launch<GatedForwardBody, T>("gated forward", args, args.rows * args.hidden, aligned,
                                     stream);
}

template <class T>
absl::Status BackwardGated(const GatedBackwardArgs<T>& args, CudaStream stream) {
  DT_CHECK_GE(args.stride, args.hidden);
  const bool aligned =
      Aligned16(args.gate, args.up, args.dout, args.dgate, args.dup) && WholeWords(args);
  return Launch<GatedBackwardBody, T>("gated backward", args, args.rows * args.hidden, aligned,
                                      stream);
}

}  // namespace

absl::Status ActivationForwardCuda(const ActivationForwardArgs<float>& args, CudaStream stream) {
  return Forward(args, stream);
}
absl::Status ActivationForwardCuda(const ActivationForwardArgs<BFloat16>& args, CudaStream stream) {
  return Forward(args, stream);
}
absl::Status ActivationBackwardCuda(const ActivationBackwardArgs<float>& args, CudaStream stream) {
  return Backward(args, stream);
}
absl::Status ActivationBackwardCuda(const ActivationBackwardArgs<BFloat16>& args,
                                    CudaStream stream) {
  return Backward(args, stream);
}
absl::Status GatedForwardCuda(const GatedForwardArgs<float>& args, CudaStream stream) {
  return ForwardGated(args, stream);
}
absl::Status GatedForwardCuda(const GatedForwardArgs<BFloat16>& args, CudaStream stream) {
  return ForwardGated(args, stream);
}
absl::Status GatedBackwardCuda(const GatedBackwardArgs<float>& args, CudaStream stream) {
  return BackwardGated(args, stream);
}
absl::Status GatedBackwardCuda(const GatedBackwardArgs<BFloat16>& args, CudaStream stream) {
  return BackwardGated(args, stream);
}

}  // namespace dtrain::kernels
