#include "kernels/cuda/cuda_group_index.h"
#include "kernels/cuda/cuda_reduce.cuh"
#include "kernels/cuda/cuda_vector.cuh"
#include "kernels/optimizer/grad_norm.h"

namespace dtrain::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kTreeThreads = 1024;

// Adds the squares of this thread's elements of x [n].
template <int kLanes, class T>
__device__ void AddSquares(const T* x, int64_t n, PairedSquareSum* sum) {
  const RowStride mine = RowStrideOf(threadIdx.x, kThreads, kLanes);
  for (int64_t i = mine.first; i < n; i += mine.step) {
    sum->Add<kLanes>(LoadLanes<kLanes>(x + i).v);
  }
}

// One block of threads for one norm block.
template <class T>
__global__ void __launch_bounds__(kThreads)
    BlockSquareSumsKernel(const T* x, int64_t offset, int64_t n, double* block_sums) {
  __shared__ PairedSquareSum scratch[kThreads / 32];
  const NormSpan span = NormSpanOf(blockIdx.x, offset, n);
  const T* const data = x + span.from;
  const int64_t count = span.to - span.from;
  // The way of loading changes the order of the sum, so it follows from the addresses' alignment
  // and is the same on repeat.
  PairedSquareSum sum = {};
  if (reinterpret_cast<uint64_t>(data) % 16 == 0) {
    const int64_t whole = span.whole() - span.from;
    AddSquares<kWidth>(data, whole, &sum);
    AddSquares<1>(data + whole, count - whole, &sum);
  } else {
    AddSquares<1>(data, count, &sum);
  }
  const double total = BlockSum(sum, scratch);
  if (threadIdx.x == 0) {
    block_sums[blockIdx.x] = total;
  }
}

// cuda_group_index.h says what each block folds.
__global__ void __launch_bounds__(kTreeThreads)
    TreeKernel(double* sums, int64_t count, int64_t group, int64_t first_stride, double* total) {
  const TreeSpan span = TreeSpanOf(blockIdx.x, group, count);
  for (int64_t stride = first_stride; stride < group; stride *= 2) {
    const TreeStride mine = TreeStrideOf(span, stride, threadIdx.x, kTreeThreads);
    for (int64_t i = mine.first; i + stride < span.end; i += mine.step) {
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
  if (const auto groups = static_cast<unsigned>(TreeGroups(count)); groups > 0) {
    TreeKernel<<<groups, kTreeThreads, 0, stream>>>(sums, count, kTreeGroup, stride, nullptr);
    stride = kTreeGroup;
  }
  TreeKernel<<<1, kTreeThreads, 0, stream>>>(sums, count, TreeWidth(count), stride, sum);
  return LaunchStatus("gradient norm tree");
}

}  // namespace dtrain::kernels
