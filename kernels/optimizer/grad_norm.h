// Sum of squares of a gradient in fp64, with the finite flag, in an order that depends on nothing
// but the elements' places in the global layout.
//
// The numerics contract: the layout is cut into blocks of 4,096 elements, each block is summed in a
// fixed order, and the blocks are added as a binary tree over their numbers. Ranks that hold ranges
// which begin and end at block boundaries therefore get the bits of one rank that holds all.
// Thread-safe on disjoint buffers; nothing is allocated.
#pragma once

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "base/numeric/float16.h"
#include "base/threads/parallel_for.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/host_device.h"

namespace dtrain::kernels {

constexpr int64_t kNormBlock = 4096;

// How many blocks the elements [offset, offset + n) of the layout touch.
constexpr int64_t NormBlocks(int64_t offset, int64_t n) {
  return n <= 0 ? 0 : (offset + n - 1) / kNormBlock - offset / kNormBlock + 1;
}

// Fills block_sums [NormBlocks(offset, n)] with the sum of squares of each block's elements among
// x [n], whose first element is the layout's element `offset`. No square of an fp32 value overflows
// fp64, so a sum that is not finite means that an element is not.
void BlockSquareSumsCpu(const float* x, int64_t offset, int64_t n, double* block_sums,
                        ParallelFor parallel_for);
void BlockSquareSumsCpu(const BFloat16* x, int64_t offset, int64_t n, double* block_sums,
                        ParallelFor parallel_for);

// The tree over blocks: at each level, 2i and 2i + 1 are added; an odd last one moves up. Uses
// `sums` [count] as its scratch. 0 when count is 0.
double TreeSum(double* sums, int64_t count);

struct SquareSum {
  double sum = 0;
  bool finite() const { return std::isfinite(sum); }
};

// Does both steps for a range that one rank holds; scratch is [NormBlocks(offset, n)] doubles.
SquareSum SquareSumCpu(const float* x, int64_t offset, int64_t n, double* scratch,
                       ParallelFor parallel_for);
SquareSum SquareSumCpu(const BFloat16* x, int64_t offset, int64_t n, double* scratch,
                       ParallelFor parallel_for);

// The factor that brings a gradient of norm `norm` to a norm of at most `norm_max`, as
// torch.nn.utils.clip_grad_norm_ computes it. norm_max <= 0: no clipping.
DT_HOST_DEVICE inline double ClipFactor(double norm, double norm_max) {
  const double factor = norm_max / (norm + 1e-6);
  return norm_max > 0 && factor < 1 ? factor : 1;
}

// The same on device pointers. Queue kernels on `stream`, do not synchronise; Internal when a
// launch fails. Within a block the order differs from the CPU's, so sums agree to 1e-12 relative;
// repeats give the same bits. TreeSumCuda writes the tree's sum to *sum.
absl::Status BlockSquareSumsCuda(const float* x, int64_t offset, int64_t n, double* block_sums,
                                 CudaStream stream);
absl::Status BlockSquareSumsCuda(const BFloat16* x, int64_t offset, int64_t n, double* block_sums,
                                 CudaStream stream);
absl::Status TreeSumCuda(double* sums, int64_t count, double* sum, CudaStream stream);

}  // namespace dtrain::kernels
