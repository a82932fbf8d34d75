#include "base/check.h"
#include "kernels/cuda_reduce.cuh"
#include "kernels/cuda_row.cuh"
#include "kernels/cuda_vector.cuh"
#include "kernels/float_math.h"
#include "kernels/rmsnorm.h"

namespace dtrain::kernels {
namespace {

template <class T, int kLanes, int kSteps, bool kResidual>
__global__ void __launch_bounds__(kRowThreadsMax) ForwardKernel(RmsNormForwardArgs<T> args) {
  __shared__ float scratch[kRowThreadsMax / 32];
  const Row<kLanes, kSteps> row{args.hidden};
  const int64_t start = blockIdx.x * args.hidden;
  const T* const h_at = (kResidual ? args.sum : args.x) + start;
  Lanes<kLanes> kept[Row<kLanes, kSteps>::kKept];
  float squares = 0;
  row.Each([&](int k, int64_t i) {
    Lanes<kLanes> h = LoadLanes<kLanes>(args.x + start + i);
    if constexpr (kResidual) {
      const Lanes<kLanes> residual = LoadLanes<kLanes>(args.residual + start + i);
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        // The backward sees h as it is stored.
        h.v[lane] = Widen(Narrow<T>(h.v[lane] + residual.v[lane]));
      }
      StoreLanes(args.sum + start + i, h);
    }
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      squares = Fma(h.v[lane], h.v[lane], squares);
    }
    kept[kSteps > 0 ? k : 0] = h;
  });
  const float mean = BlockSum(squares, scratch) / static_cast<float>(args.hidden);
  const float rstd = 1.0F / sqrtf(mean + args.eps);
  if (threadIdx.x == 0) {
    args.rstd[blockIdx.x] = rstd;
  }
  row.Each([&](int k, int64_t i) {
    Lanes<kLanes> y = kSteps > 0 ? kept[kSteps > 0 ? k : 0] : LoadLanes<kLanes>(h_at + i);
    const Lanes<kLanes> weight = LoadLanes<kLanes>(args.weight + i);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      y.v[lane] = y.v[lane] * rstd * weight.v[lane];
    }
    StoreLanes(args.y + start + i, y);
  });
}

// Block b takes rows b, b + gridDim, ... and writes the weight gradient of those to its row of the
// workspace.
template <class T, int kLanes, int kSteps, bool kResidual>
__global__ void __launch_bounds__(kRowThreadsMax) BackwardKernel(RmsNormBackwardArgs<T> args) {
  __shared__ float scratch[kRowThreadsMax / 32];
  constexpr int kKept = Row<kLanes, kSteps>::kKept;
  const Row<kLanes, kSteps> row{args.hidden};
  float* const partial = args.workspace + blockIdx.x * args.hidden;
  Lanes<kLanes> dweight[kKept] = {};
  if constexpr (kSteps == 0) {
    row.Each([&](int, int64_t i) { StoreLanes(partial + i, Lanes<kLanes>{}); });
  }
  for (int64_t token = blockIdx.x; token < args.tokens; token += gridDim.x) {
    const int64_t start = token * args.hidden;
    const float rstd = args.rstd[token];
    Lanes<kLanes> kept_h[kKept];
    Lanes<kLanes> kept_dy[kKept];
    float terms = 0;
    row.Each([&](int k, int64_t i) {
      const Lanes<kLanes> h = LoadLanes<kLanes>(args.h + start + i);
      const Lanes<kLanes> dy = LoadLanes<kLanes>(args.dy + start + i);
      const Lanes<kLanes> weight = LoadLanes<kLanes>(args.weight + i);
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        terms = Fma(dy.v[lane] * weight.v[lane], h.v[lane], terms);
      }
      kept_h[kSteps > 0 ? k : 0] = h;
      kept_dy[kSteps > 0 ? k : 0] = dy;
    });
    const float dot = BlockSum(terms, scratch);
    const float along_h = -(dot / static_cast<float>(args.hidden) * rstd * rstd * rstd);
    row.Each([&](int k, int64_t i) {
      const int at = kSteps > 0 ? k : 0;
      const Lanes<kLanes> h = kSteps > 0 ? kept_h[at] : LoadLanes<kLanes>(args.h + start + i);
      const Lanes<kLanes> dy = kSteps > 0 ? kept_dy[at] : LoadLanes<kLanes>(args.dy + start + i);
      const Lanes<kLanes> weight = LoadLanes<kLanes>(args.weight + i);
      Lanes<kLanes> sum = kSteps > 0 ? dweight[at] : LoadLanes<kLanes>(partial + i);
      Lanes<kLanes> dh;
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        dh.v[lane] = Fma(h.v[lane], along_h, dy.v[lane] * weight.v[lane] * rstd);
        sum.v[lane] = Fma(dy.v[lane], h.v[lane] * rstd, sum.v[lane]);
      }
      if constexpr (kResidual) {
        const Lanes<kLanes> dsum = LoadLanes<kLanes>(args.dsum + start + i);
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
          dh.v[lane] += dsum.v[lane];
        }
      }
      StoreLanes(args.dh + start + i, dh);
      if constexpr (kSteps > 0) {
        dweight[at] = sum;
      } else {
        StoreLanes(partial + i, sum);
      }
    });
  }
  if constexpr (kSteps > 0) {
    row.Each([&](int k, int64_t i) { StoreLanes(partial + i, dweight[k]); });
  }
}

template <class T>
struct ForwardLaunch {
  const RmsNormForwardArgs<T>& args;
  CudaStream stream;

  template <int kLanes, int kSteps>
  void Run(unsigned threads) const {
    const auto rows = static_cast<unsigned>(args.tokens);
    if (args.residual != nullptr) {
      ForwardKernel<T, kLanes, kSteps, true><<<rows, threads, 0, stream>>>(args);
    } else {
      ForwardKernel<T, kLanes, kSteps, false><<<rows, threads, 0, stream>>>(args);
    }
  }
};

template <class T>
struct BackwardLaunch {
  const RmsNormBackwardArgs<T>& args;
  CudaStream stream;

  template <int kLanes, int kSteps>
  void Run(unsigned threads) const {
    const auto chunks = static_cast<unsigned>(RowChunksCuda(args.tokens));
    if (args.dsum != nullptr) {
      BackwardKernel<T, kLanes, kSteps, true><<<chunks, threads, 0, stream>>>(args);
    } else {
      BackwardKernel<T, kLanes, kSteps, false><<<chunks, threads, 0, stream>>>(args);
    }
  }
};

template <class T>
absl::Status Forward(const RmsNormForwardArgs<T>& args, CudaStream stream) {
  RequireStream(stream);
  DT_CHECK_GT(args.hidden, 0);
  DT_CHECK((args.residual == nullptr) == (args.sum == nullptr)) << " residual and sum go together";
  if (args.tokens == 0) {
    return absl::OkStatus();
  }
  const bool aligned = Aligned16(args.x, args.residual, args.weight, args.sum, args.y);
  ChooseRow(args.hidden, aligned, ForwardLaunch<T>{args, stream});
  return LaunchStatus("rmsnorm forward");
}

template <class T>
absl::Status Backward(const RmsNormBackwardArgs<T>& args, CudaStream stream) {
  RequireStream(stream);
  DT_CHECK_GT(args.hidden, 0);
  const bool aligned =
      Aligned16(args.h, args.weight, args.dy, args.dsum, args.dh) && Aligned16(args.workspace);
  const int64_t chunks = RowChunksCuda(args.tokens);
  if (chunks > 0) {
    ChooseRow(args.hidden, aligned, BackwardLaunch<T>{args, stream});
  }
  SumColumns(args.workspace, chunks, args.hidden, args.hidden, args.dweight, stream);
  return LaunchStatus("rmsnorm backward");
}

}  // namespace

absl::Status RmsNormForwardCuda(const RmsNormForwardArgs<float>& args, CudaStream stream) {
  return Forward(args, stream);
}
absl::Status RmsNormForwardCuda(const RmsNormForwardArgs<BFloat16>& args, CudaStream stream) {
  return Forward(args, stream);
}
absl::Status RmsNormBackwardCuda(const RmsNormBackwardArgs<float>& args, CudaStream stream) {
  return Backward(args, stream);
}
absl::Status RmsNormBackwardCuda(const RmsNormBackwardArgs<BFloat16>& args, CudaStream stream) {
  return Backward(args, stream);
}

}  // namespace dtrain::kernels
