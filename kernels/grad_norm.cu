#include "kernels/cuda_reduce.cuh"
#include "kernels/cuda_vector.cuh"
#include "kernels/grad_norm.h"

namespace dtrain::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kTreeGroup = 2048;  // Sums that one block of the first tree kernel folds.

template <int kLanes, class T>
__device__ double SquareSumOfThread(const T* x, int64_t n) {
  double sum = 0;
  for (int64_t i = int64_t{threadIdx.x} * kLanes; i + kLanes <= n; i += kThreads * kLanes) {
    const Lanes<kLanes> lanes = LoadLanes<kLanes>(x + i);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      sum += static_cast<double>(lanes.v[lane]) * static_cast<double>(lanes.v[lane]);
    }
  }
  return sum;
}

// One block of threads for one norm block.
template <class T>
__global__ void __launch_bounds__(kThreads)
    BlockSquareSumsKernel(const T* x, int64_t offset, int64_t n, double* block_sums) {
  __shared__ double scratch[kThreads / 32];
  const NormSpan span = NormSpanOf(blockIdx.x, offset, n);
  const T* const data = x + span.from;
  const int64_t count = span.to - span.from;
  // The way of loading changes the order of the sum, so it follows from the addresses' alignment
  // and is the same on repeat.
  double sum = 0;
  if (reinterpret_cast<uint64_t>(data) % 16 == 0) {
    const int64_t whole = span.whole() - span.from;
    sum =
        SquareSumOfThread<kWidth>(data, whole) + SquareSumOfThread<1>(data + whole, count - whole);
  } else {
    sum = SquareSumOfThread<1>(data, count);
  }
  sum = BlockSum(sum, scratch);
  if (threadIdx.x == 0) {
    block_sums[blockIdx.x] = sum;
  }
}

// Levels of TreeSum without moving results: a level of `stride` adds [i + stride] to [i] for i a
// multiple of 2 stride, which pairs the same partial sums. Each block folds `group` sums.
__global__ void __launch_bounds__(1024)
    TreeKernel(double* sums, int64_t count, int64_t group, int64_t first_stride, double* total) {
  const int64_t begin = blockIdx.x * group;
  const int64_t end = begin + group < count ? begin + group : count;
  for (int64_t stride = first_stride; stride < group; stride *= 2) {
    for (int64_t i = begin + int64_t{threadIdx.x} * 2 * stride; i + stride < end;
         i += int64_t{blockDim.x} * 2 * stride) {
      sums[i] += sums[i + stride];
    }
    __syncthreads();
  }
  if (total != nullptr && threadIdx.x == 0) {
    *total = count > 0 ? sums[0] : 0;
  }
}

template <class T>
absl::Status Launch(const T* x, int64_t offset, int64_t n, double* block_sums, CudaStream stream) {
  RequireStream(stream);
  const int64_t blocks = NormBlocks(offset, n);
  if (blocks == 0) {
    return absl::OkStatus();
  }
  BlockSquareSumsKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(x, offset, n,
                                                                                block_sums);
  return LaunchStatus("gradient norm blocks");
}

}  // namespace

absl::Status BlockSquareSumsCuda(const float* x, int64_t offset, int64_t n, double* block_sums,
                                 CudaStream stream) {
  return Launch(x, offset, n, block_sums, stream);
}

absl::Status BlockSquareSumsCuda(const BFloat16* x, int64_t offset, int64_t n, double* block_sums,
                                 CudaStream stream) {
  return Launch(x, offset, n, block_sums, stream);
}

absl::Status TreeSumCuda(double* sums, int64_t count, double* sum, CudaStream stream) {
  RequireStream(stream);
  int64_t stride = 1;
  if (count > kTreeGroup) {
    const auto groups = static_cast<unsigned>((count + kTreeGroup - 1) / kTreeGroup);
    TreeKernel<<<groups, 1024, 0, stream>>>(sums, count, kTreeGroup, stride, nullptr);
    stride = kTreeGroup;
  }
  int64_t group = 1;
  while (group < count) {
    group *= 2;
  }
  TreeKernel<<<1, 1024, 0, stream>>>(sums, count, group, stride, sum);
  return LaunchStatus("gradient norm tree");
}

}  // namespace dtrain::kernels
