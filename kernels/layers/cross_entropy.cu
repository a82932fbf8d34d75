#include <cfloat>

#include "base/check.h"
#include "kernels/cuda/cuda_reduce.cuh"
#include "kernels/cuda/cuda_vector.cuh"
#include "kernels/layers/cross_entropy.h"
#include "kernels/layers/cross_entropy_math.h"

namespace dtrain::kernels {
namespace {

constexpr int kThreads = 512;

// The largest value of the block, in every thread; scratch as for BlockSum.
__device__ float BlockMax(float value, float* scratch) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, distance));
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    scratch[threadIdx.x / 32] = value;
  }
  __syncthreads();
  float largest = scratch[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / 32; ++warp) {
    largest = fmaxf(largest, scratch[warp]);
  }
  return largest;
}

// A number of lanes as a type, for bodies that are compiled for both.
template <int kLanes>
struct Width {
  static constexpr int kValue = kLanes;
};

// body(Width<kLanes>, first) for this thread's steps of kLanes elements over a row of n, and
// body(Width<1>, i) for the elements before its first 16-byte word and behind its last: a row of an
// odd vocabulary begins anywhere. kBack: from the row's end to its start.
template <int kLanes, bool kBack, class T, class Body>
__device__ void EachStep(const T* row, int64_t n, Body body) {
  const RowWords words = RowWordsOf(reinterpret_cast<uint64_t>(row), sizeof(T), n, kLanes);
  const int64_t thread = threadIdx.x;
  if constexpr (kLanes > 1) {
    if (thread < words.begin) {
      body(Width<1>{}, thread);
    }
    if (thread < n - words.end) {
      body(Width<1>{}, words.end + thread);
    }
  }
  const RowStride mine = RowStrideOf(threadIdx.x, kThreads, kLanes);
  const int64_t first = words.begin + mine.first;
  if constexpr (kBack) {
    const int64_t steps = (words.end - first + mine.step - 1) / mine.step;
    for (int64_t i = first + (steps - 1) * mine.step; i >= first; i -= mine.step) {
      body(Width<kLanes>{}, i);
    }
  } else {
    for (int64_t i = first; i < words.end; i += mine.step) {
      body(Width<kLanes>{}, i);
    }
  }
}

// The running maximum and the sum of exponentials below it of one thread's elements. fmaxf passes
// NaN over; the sum keeps it.
struct Running {
  float largest = -FLT_MAX;
  float sum = 0;

  template <int kLanes>
  __device__ void Add(const Lanes<kLanes>& x) {
    float next = largest;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      next = fmaxf(next, x.v[lane]);
    }
    sum *= __expf(largest - next);
    largest = next;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      sum += __expf(x.v[lane] - largest);
    }
  }
};

template <class T, int kLanes>
__device__ void RowForward(const CrossEntropyArgs<T>& args, int64_t row, float* scratch) {
  const T* const x = args.logits + row * args.vocab;
  const int64_t target = args.targets[row];
  const bool smooth = args.options.label_smoothing > 0;
  Running running;
  float logits = 0;
  EachStep<kLanes, false>(x, args.vocab, [&](auto width, int64_t i) {
    const auto lanes = LoadLanes<width.kValue>(x + i);
    running.Add(lanes);
    if (smooth) {
#pragma unroll
      for (int lane = 0; lane < width.kValue; ++lane) {
        logits += lanes.v[lane];
      }
    }
  });
  const float largest = BlockMax(running.largest, scratch);
  const float sum = BlockSum(running.sum * __expf(running.largest - largest), scratch);
  const float logit_sum = smooth ? BlockSum(logits, scratch) : 0.0F;
  if (threadIdx.x == 0) {
    const bool in_range = TargetInRange(target, args.vocab);
    const float lse = in_range ? largest + logf(sum) : nanf("");
    args.lse[row] = lse;
    args.losses[row] =
        CrossEntropyRowLoss(lse, in_range ? Widen(x[target]) : 0.0F, static_cast<double>(logit_sum),
                            args.vocab, args.options);
  }
}

// Goes from the row's end, which the forward read last and a cache still holds.
template <class T, int kLanes>
__device__ void RowBackward(const CrossEntropyArgs<T>& args, int64_t row) {
  const T* const x = args.logits + row * args.vocab;
  T* const out = args.gradient + row * args.vocab;
  const int64_t target = args.targets[row];
  const bool kept = target != args.options.ignore_index;
  const float lse = args.lse[row];
  const CrossEntropyRowGradient gradient =
      MakeCrossEntropyRowGradient(lse, args.vocab, args.gradient_scale, args.options);
  EachStep<kLanes, true>(x, args.vocab, [&](auto width, int64_t i) {
    auto lanes = LoadLanes<width.kValue>(x + i);
#pragma unroll
    for (int lane = 0; lane < width.kValue; ++lane) {
      const float more = i + lane == target ? gradient.at_target : 0.0F;
      const float dx =
          fmaf(__expf(lanes.v[lane] - lse), gradient.along_p, gradient.everywhere + more);
      lanes.v[lane] = kept ? dx : 0.0F;
    }
    StoreLanes(out + i, lanes);
  });
}

template <class T, int kLanes, bool kBackward>
__global__ void __launch_bounds__(kThreads) RowsKernel(CrossEntropyArgs<T> args) {
  __shared__ float scratch[kThreads / 32];
  const int64_t row = blockIdx.x;
  if (args.targets[row] != args.options.ignore_index) {
    RowForward<T, kLanes>(args, row, scratch);
  } else if (threadIdx.x == 0) {
    args.losses[row] = 0;
    args.lse[row] = 0;
  }
  if constexpr (kBackward) {
    __syncthreads();  // lse has been written.
    RowBackward<T, kLanes>(args, row);
  }
}

__global__ void __launch_bounds__(kThreads)
    TotalsKernel(int64_t tokens, const float* losses, const int64_t* targets, int64_t ignore_index,
                 CrossEntropyTotals* totals) {
  __shared__ double sums[kThreads / 32];
  __shared__ unsigned long long counts[kThreads / 32];
  double sum = 0;
  unsigned long long count = 0;
  const RowStride mine = RowStrideOf(threadIdx.x, kThreads, 1);
  for (int64_t i = mine.first; i < tokens; i += mine.step) {
    sum += static_cast<double>(losses[i]);
    count += targets[i] != ignore_index ? 1 : 0;
  }
  sum = BlockSum(sum, sums);
  count = BlockSum(count, counts);
  if (threadIdx.x == 0) {
    totals->sum = sum;
    totals->count = static_cast<int64_t>(count);
  }
}

template <bool kBackward, class T>
absl::Status Launch(const char* name, const CrossEntropyArgs<T>& args, CudaStream stream) {
  RequireStream(stream);
  DT_CHECK_GT(args.vocab, 0);
  if (args.tokens == 0) {
    return absl::OkStatus();
  }
  const auto rows = static_cast<unsigned>(args.tokens);
  // The same words in a row of the logits and of their gradient.
  const auto place = [](const T* p) { return reinterpret_cast<uint64_t>(p) % 16; };
  if (args.gradient == nullptr || place(args.logits) == place(args.gradient)) {
    RowsKernel<T, kWidth, kBackward><<<rows, kThreads, 0, stream>>>(args);
  } else {
    RowsKernel<T, 1, kBackward><<<rows, kThreads, 0, stream>>>(args);
  }
  return LaunchStatus(name);
}

template <class T>
absl::Status Forward(const CrossEntropyArgs<T>& args, CudaStream stream) {
  return args.gradient != nullptr ? Launch<true>("cross-entropy", args, stream)
                                  : Launch<false>("cross-entropy forward", args, stream);
}

}  // namespace

absl::Status CrossEntropyForwardCuda(const CrossEntropyArgs<float>& args, CudaStream stream) {
  return Forward(args, stream);
}
absl::Status CrossEntropyForwardCuda(const CrossEntropyArgs<BFloat16>& args, CudaStream stream) {
  return Forward(args, stream);
}
absl::Status CrossEntropyTotalsCuda(int64_t tokens, const float* losses, const int64_t* targets,
                                    int64_t ignore_index, CrossEntropyTotals* totals,
                                    CudaStream stream) {
  RequireStream(stream);
  TotalsKernel<<<1, kThreads, 0, stream>>>(tokens, losses, targets, ignore_index, totals);
  return LaunchStatus("cross-entropy totals");
}

}  // namespace dtrain::kernels
