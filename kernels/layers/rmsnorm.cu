#include "base/check.h"
#include "kernels/cuda/cuda_reduce.cuh"
#include "kernels/cuda/cuda_row.cuh"
#include "kernels/cuda/cuda_vector.cuh"
#include "kernels/float_math.h"
#include "kernels/layers/rmsnorm.h"

namespace dtrain::kernels {
namespace {

template <class T, int kLanes, int kSteps, int kTeam, bool kResidual>
__global__ void __launch_bounds__(kTeam > 0 ? kTeamBlock : kRowThreadsMax)
    ForwardKernel(RmsNormForwardArgs<T> args) {
  using R = Row<kLanes, kSteps, kTeam>;
  __shared__ float scratch[kRowThreadsMax / 32];
  const int64_t token = int64_t{blockIdx.x} * R::rows() + R::row();
  const bool is_there = kTeam == 0 || token < args.tokens;
  const R row{is_there ? args.hidden : 0};
  const int64_t start = token * args.hidden;
  const T* const h_at = (kResidual ? args.sum : args.x) + start;
  Lanes<kLanes> kept[R::kKept];
  float squares = 0;
  row.Each([&](int k, int64_t i) {
    Lanes<kLanes> h = LoadLanes<kLanes>(args.x + start + i);
    if constexpr (kResidual) {
      const Lanes<kLanes> residual = LoadLanes<kLanes>(args.residual + start + i);
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        h.v[lane] += residual.v[lane];
      }
      h = StoreRounded(args.sum + start + i, h);  // The backward sees h as it is stored.
    }
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      squares = Fma(h.v[lane], h.v[lane], squares);
    }
    kept[kSteps > 0 ? k : 0] = h;
  });
  const float mean = R::Sum(squares, scratch) / static_cast<float>(args.hidden);
  const float rstd = 1.0F / sqrtf(mean + args.eps);
  if (R::thread() == 0 && is_there) {
    args.rstd[token] = rstd;
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

// Block b takes the b-th, (b + gridDim)-th, ... of the groups of rows that a block has at once, and
// writes the weight gradient of those to its row of the workspace. One block a multiprocessor is
// enough: for two, ptxas spills on sm_100.
template <class T, int kLanes, int kSteps, int kTeam, bool kResidual>
__global__ void __launch_bounds__(kTeam > 0 ? kTeamBlock : kRowThreadsMax, 1)
    BackwardKernel(RmsNormBackwardArgs<T> args) {
  using R = Row<kLanes, kSteps, kTeam>;
  __shared__ float scratch[kRowThreadsMax / 32];
  __shared__ float columns[kTeamColumns<kLanes, kSteps, kTeam>];
  constexpr int kKept = R::kKept;
  const R every{args.hidden};
  float* const partial = args.workspace + blockIdx.x * args.hidden;
  Lanes<kLanes> dweight[kKept] = {};
  if constexpr (kSteps == 0) {
    every.Each([&](int, int64_t i) { StoreLanes(partial + i, Lanes<kLanes>{}); });
  }
  const int64_t stride = int64_t{gridDim.x} * R::rows();
  // A block loads a row while it sums up the one before, and keeps it as it lies in memory: were it
  // widened at once, its second half would be asked for only when the first is there. Teams do not
  // wait for others.
  constexpr bool kAhead = kSteps > 0 && kTeam == 0;
  [[maybe_unused]] Pieces<kWidth, T> next_h[kKept];
  [[maybe_unused]] Pieces<kWidth, T> next_dy[kKept];
  [[maybe_unused]] const auto load = [&](int64_t token, int k, int64_t i) {
    next_h[k] = LoadPieces<kWidth>(args.h + token * args.hidden + i);
    next_dy[k] = LoadPieces<kWidth>(args.dy + token * args.hidden + i);
  };
  if constexpr (kAhead) {
    every.Each([&](int k, int64_t i) { load(blockIdx.x, k, i); });
  }
  for (int64_t first = int64_t{blockIdx.x} * R::rows(); first < args.tokens; first += stride) {
    const int64_t token = first + R::row();
    const bool is_there = kTeam == 0 || token < args.tokens;
    const R row{is_there ? args.hidden : 0};
    const int64_t start = token * args.hidden;
    const float rstd = is_there ? args.rstd[token] : 0;
    Lanes<kLanes> h[kKept];
    Lanes<kLanes> dy[kKept];
    float terms = 0;
    row.Each([&](int k, int64_t i) {
      const int at = kSteps > 0 ? k : 0;
      if constexpr (kAhead) {
        h[at] = LanesOf(next_h[at]);
        dy[at] = LanesOf(next_dy[at]);
      } else {
        h[at] = LoadLanes<kLanes>(args.h + start + i);
        dy[at] = LoadLanes<kLanes>(args.dy + start + i);
      }
      const Lanes<kLanes> weight = LoadLanes<kLanes>(args.weight + i);
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        terms = Fma(dy[at].v[lane] * weight.v[lane], h[at].v[lane], terms);
      }
    });
    if constexpr (kAhead) {
      if (token + stride < args.tokens) {
        row.Each([&](int k, int64_t i) { load(token + stride, k, i); });
      }
    }
    const float dot = R::Sum(terms, scratch);
    const float along_h = -(dot / static_cast<float>(args.hidden) * rstd * rstd * rstd);
    row.Each([&](int k, int64_t i) {
      const int at = kSteps > 0 ? k : 0;
      if constexpr (kSteps == 0) {
        h[at] = LoadLanes<kLanes>(args.h + start + i);
        dy[at] = LoadLanes<kLanes>(args.dy + start + i);
      }
      const Lanes<kLanes> weight = LoadLanes<kLanes>(args.weight + i);
      Lanes<kLanes> sum = kSteps > 0 ? dweight[at] : LoadLanes<kLanes>(partial + i);
      Lanes<kLanes> dh;
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        dh.v[lane] = Fma(h[at].v[lane], along_h, dy[at].v[lane] * weight.v[lane] * rstd);
        sum.v[lane] = Fma(dy[at].v[lane], h[at].v[lane] * rstd, sum.v[lane]);
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
    StoreColumns(every, dweight, columns, partial);
  }
}

template <class T>
struct ForwardLaunch {
  const RmsNormForwardArgs<T>& args;
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
  const RmsNormBackwardArgs<T>& args;
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
absl::Status Forward(const RmsNormForwardArgs<T>& args, CudaStream stream) {
  RequireStream(stream);
  DT_CHECK_GT(args.hidden, 0);
  DT_CHECK((args.residual == nullptr) == (args.sum == nullptr)) << " residual and sum go together";
  if (args.tokens == 0) {
    return absl::OkStatus();
  }
  const bool aligned = Aligned16(args.x, args.residual, args.weight, args.sum, args.y);
  ChooseRow(RowPlanOf(args.hidden, aligned), ForwardLaunch<T>{args, stream});
  return LaunchStatus("rmsnorm forward");
}

template <class T>
absl::Status Backward(const RmsNormBackwardArgs<T>& args, CudaStream stream) {
  RequireStream(stream);
  DT_CHECK_GT(args.hidden, 0);
  const bool aligned =
      Aligned16(args.h, args.weight, args.dy, args.dsum, args.dh) && Aligned16(args.workspace);
  const RowPlan plan = RowPlanOf(args.hidden, aligned);
  const int64_t chunks = RowBlocksOfBackward(plan, args.tokens, args.hidden);
  if (chunks > 0) {
    ChooseRow(plan, BackwardLaunch<T>{args, stream});
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
