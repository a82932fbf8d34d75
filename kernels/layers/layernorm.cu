#include "base/check.h"
#include "kernels/cuda/cuda_reduce.cuh"
#include "kernels/cuda/cuda_row.cuh"
#include "kernels/cuda/cuda_vector.cuh"
#include "kernels/float_math.h"
#include "kernels/layers/layernorm.h"

namespace dtrain::kernels {
namespace {

// The row's h at i: x, or x + residual as it is stored there.
template <int kLanes, bool kResidual, class T>
__device__ Lanes<kLanes> MakeSum(const LayerNormForwardArgs<T>& args, int64_t at) {
  Lanes<kLanes> h = LoadLanes<kLanes>(args.x + at);
  if constexpr (kResidual) {
    const Lanes<kLanes> residual = LoadLanes<kLanes>(args.residual + at);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      h.v[lane] += residual.v[lane];
    }
    h = StoreRounded(args.sum + at, h);
  }
  return h;
}

template <class T, int kLanes, int kSteps, int kTeam, bool kResidual>
__global__ void __launch_bounds__(kTeam > 0 ? kTeamBlock : kRowThreadsMax)
    ForwardKernel(LayerNormForwardArgs<T> args) {
  using R = Row<kLanes, kSteps, kTeam>;
  __shared__ float scratch[kRowThreadsMax / 32];
  const int64_t token = int64_t{blockIdx.x} * R::rows() + R::row();
  const bool is_there = kTeam == 0 || token < args.tokens;
  const R row{is_there ? args.hidden : 0};
  const int64_t start = token * args.hidden;
  const T* const h_at = (kResidual ? args.sum : args.x) + start;
  const float width = static_cast<float>(args.hidden);
  Lanes<kLanes> kept[R::kKept];
  float sum = 0;
  row.Each([&](int k, int64_t i) {
    const Lanes<kLanes> h = MakeSum<kLanes, kResidual>(args, start + i);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      sum += h.v[lane];
    }
    kept[kSteps > 0 ? k : 0] = h;
  });
  const float mean = R::Sum(sum, scratch) / width;
  float squares = 0;
  row.Each([&](int k, int64_t i) {
    const Lanes<kLanes> h = kSteps > 0 ? kept[kSteps > 0 ? k : 0] : LoadLanes<kLanes>(h_at + i);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      const float centred = h.v[lane] - mean;
      squares = Fma(centred, centred, squares);
    }
  });
  const float rstd = 1.0F / sqrtf(R::Sum(squares, scratch) / width + args.eps);
  if (R::thread() == 0 && is_there) {
    args.mean[token] = mean;
    args.rstd[token] = rstd;
  }
  row.Each([&](int k, int64_t i) {
    Lanes<kLanes> y = kSteps > 0 ? kept[kSteps > 0 ? k : 0] : LoadLanes<kLanes>(h_at + i);
    const Lanes<kLanes> weight = LoadLanes<kLanes>(args.weight + i);
    const Lanes<kLanes> bias =
        args.bias != nullptr ? LoadLanes<kLanes>(args.bias + i) : Lanes<kLanes>{};
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      y.v[lane] = Fma((y.v[lane] - mean) * rstd, weight.v[lane], bias.v[lane]);
    }
    StoreLanes(args.y + start + i, y);
  });
}

// Block b takes the b-th, (b + gridDim)-th, ... of the groups of rows that a block has at once, and
// writes the weight and bias gradients of those to its row of the workspace. Two blocks a
// multiprocessor are enough one by one: for three, ptxas spills on sm_120.
template <class T, int kLanes, int kSteps, int kTeam, bool kResidual>
__global__ void __launch_bounds__(kTeam > 0 ? kTeamBlock : kRowThreadsMax, kLanes == 1 ? 2 : 0)
    BackwardKernel(LayerNormBackwardArgs<T> args) {
  using R = Row<kLanes, kSteps, kTeam>;
  __shared__ float scratch[kRowThreadsMax / 32];
  __shared__ float columns[kTeamColumns<kLanes, kSteps, kTeam>];
  constexpr int kKept = R::kKept;
  const R every{args.hidden};
  float* const partial = args.workspace + blockIdx.x * 2 * args.hidden;
  float* const partial_bias = partial + args.hidden;
  const float width = static_cast<float>(args.hidden);
  Lanes<kLanes> dweight[kKept] = {};
  Lanes<kLanes> dbias[kKept] = {};
  if constexpr (kSteps == 0) {
    every.Each([&](int, int64_t i) {
      StoreLanes(partial + i, Lanes<kLanes>{});
      StoreLanes(partial_bias + i, Lanes<kLanes>{});
    });
  }
  const int64_t stride = int64_t{gridDim.x} * R::rows();
  for (int64_t first = int64_t{blockIdx.x} * R::rows(); first < args.tokens; first += stride) {
    const int64_t token = first + R::row();
    const bool is_there = kTeam == 0 || token < args.tokens;
    const R row{is_there ? args.hidden : 0};
    const int64_t start = token * args.hidden;
    const float rstd = is_there ? args.rstd[token] : 0;
    const float mean = is_there ? args.mean[token] : 0;
    Lanes<kLanes> kept_z[kKept];
    Lanes<kLanes> kept_dy[kKept];
    const auto normal = [&](int64_t i) {  // (h - mean) rstd.
      Lanes<kLanes> z = LoadLanes<kLanes>(args.h + start + i);
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        z.v[lane] = (z.v[lane] - mean) * rstd;
      }
      return z;
    };
    float sum_u = 0;
    float sum_uz = 0;
    row.Each([&](int k, int64_t i) {
      const Lanes<kLanes> z = normal(i);
      const Lanes<kLanes> dy = LoadLanes<kLanes>(args.dy + start + i);
      const Lanes<kLanes> weight = LoadLanes<kLanes>(args.weight + i);
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        const float u = dy.v[lane] * weight.v[lane];
        sum_u += u;
        sum_uz = Fma(u, z.v[lane], sum_uz);
      }
      kept_z[kSteps > 0 ? k : 0] = z;
      kept_dy[kSteps > 0 ? k : 0] = dy;
    });
    const float mean_u = R::Sum(sum_u, scratch) / width;
    const float along_z = -(R::Sum(sum_uz, scratch) / width);
    row.Each([&](int k, int64_t i) {
      const int at = kSteps > 0 ? k : 0;
      const Lanes<kLanes> z = kSteps > 0 ? kept_z[at] : normal(i);
      const Lanes<kLanes> dy = kSteps > 0 ? kept_dy[at] : LoadLanes<kLanes>(args.dy + start + i);
      const Lanes<kLanes> weight = LoadLanes<kLanes>(args.weight + i);
      Lanes<kLanes> dh;
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        dh.v[lane] = Fma(z.v[lane], along_z, dy.v[lane] * weight.v[lane] - mean_u) * rstd;
      }
      if constexpr (kResidual) {
        const Lanes<kLanes> dsum = LoadLanes<kLanes>(args.dsum + start + i);
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
          dh.v[lane] += dsum.v[lane];
        }
      }
      StoreLanes(args.dh + start + i, dh);
      // Behind the store, so that fewer registers are in use at once.
      Lanes<kLanes> sum = kSteps > 0 ? dweight[at] : LoadLanes<kLanes>(partial + i);
      Lanes<kLanes> sum_bias = kSteps > 0 ? dbias[at] : LoadLanes<kLanes>(partial_bias + i);
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        sum.v[lane] = Fma(dy.v[lane], z.v[lane], sum.v[lane]);
        sum_bias.v[lane] += dy.v[lane];
      }
      if constexpr (kSteps > 0) {
        dweight[at] = sum;
        dbias[at] = sum_bias;
      } else {
        StoreLanes(partial + i, sum);
        StoreLanes(partial_bias + i, sum_bias);
      }
    });
  }
  if constexpr (kSteps > 0) {
    StoreColumns(every, dweight, columns, partial);
    StoreColumns(every, dbias, columns, partial_bias);
  }
}

template <class T>
struct ForwardLaunch {
  const LayerNormForwardArgs<T>& args;
  CudaStream stream;

  template <int kLanes, int kSteps, int kTeam>
  void Run(const RowPlan& plan) const {
    const auto blocks = static_cast<unsigned>(RowBlocks(plan, args.tokens));
    if (args.residual != nullptr) {
      ForwardKernel<T, kLanes, kSteps, kTeam, true><<<blocks, plan.threads, 0, stream>>>(args);
    } else {
      ForwardKernel<T, kLanes, kSteps, kTeam, false><<<blocks, plan.threads, 0, stream>>>(args);
    }
  }
};

template <class T>
struct BackwardLaunch {
  const LayerNormBackwardArgs<T>& args;
  CudaStream stream;

  template <int kLanes, int kSteps, int kTeam>
  void Run(const RowPlan& plan) const {
    const auto chunks = static_cast<unsigned>(RowBlocksOfBackward(plan, args.tokens, args.hidden));
    if (args.dsum != nullptr) {
      BackwardKernel<T, kLanes, kSteps, kTeam, true><<<chunks, plan.threads, 0, stream>>>(args);
    } else {
      BackwardKernel<T, kLanes, kSteps, kTeam, false><<<chunks, plan.threads, 0, stream>>>(args);
    }
  }
};

template <class T>
absl::Status Forward(const LayerNormForwardArgs<T>& args, CudaStream stream) {
  RequireStream(stream);
  DT_CHECK_GT(args.hidden, 0);
  DT_CHECK((args.residual == nullptr) == (args.sum == nullptr)) << " residual and sum go together";
  if (args.tokens == 0) {
    return absl::OkStatus();
  }
  const bool aligned = Aligned16(args.x, args.residual, args.weight, args.bias, args.sum, args.y);
  ChooseRow(RowPlanOf(args.hidden, aligned), ForwardLaunch<T>{args, stream});
  return LaunchStatus("layernorm forward");
}

template <class T>
absl::Status Backward(const LayerNormBackwardArgs<T>& args, CudaStream stream) {
  RequireStream(stream);
  DT_CHECK_GT(args.hidden, 0);
  const bool aligned =
      Aligned16(args.h, args.weight, args.dy, args.dsum, args.dh) && Aligned16(args.workspace);
  const RowPlan plan = RowPlanOf(args.hidden, aligned);
  const int64_t chunks = RowBlocksOfBackward(plan, args.tokens, args.hidden);
  if (chunks > 0) {
    ChooseRow(plan, BackwardLaunch<T>{args, stream});
  }
  const int64_t stride = 2 * args.hidden;
  SumColumns(args.workspace, chunks, stride, args.hidden, args.dweight, stream);
  if (args.dbias != nullptr) {
    SumColumns(args.workspace + args.hidden, chunks, stride, args.hidden, args.dbias, stream);
  }
  return LaunchStatus("layernorm backward");
}

}  // namespace

absl::Status LayerNormForwardCuda(const LayerNormForwardArgs<float>& args, CudaStream stream) {
  return Forward(args, stream);
}
absl::Status LayerNormForwardCuda(const LayerNormForwardArgs<BFloat16>& args, CudaStream stream) {
  return Forward(args, stream);
}
absl::Status LayerNormBackwardCuda(const LayerNormBackwardArgs<float>& args, CudaStream stream) {
  return Backward(args, stream);
}
absl::Status LayerNormBackwardCuda(const LayerNormBackwardArgs<BFloat16>& args, CudaStream stream) {
  return Backward(args, stream);
}

}  // namespace dtrain::kernels
