#include <algorithm>

#include "kernels/optimizer/grad_norm.h"
#include "kernels/simd/simd_table.h"

namespace dtrain::kernels {
namespace {

constexpr int64_t kBlockGrain = 8;  // 32,768 elements.

template <class T, class Loop>
void Run(const T* x, int64_t offset, int64_t n, double* block_sums, ParallelFor parallel_for,
         Loop loop) {
  const int64_t first_block = offset / kNormBlock;
  parallel_for(NormBlocks(offset, n), kBlockGrain, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t block_start = (first_block + block) * kNormBlock - offset;
      const int64_t from = std::max<int64_t>(block_start, 0);
      const int64_t to = std::min(block_start + kNormBlock, n);
      block_sums[block] = loop(x + from, to - from);
    }
  });
}

}  // namespace

void BlockSquareSumsCpu(const float* x, int64_t offset, int64_t n, double* block_sums,
                        ParallelFor parallel_for) {
  Run(x, offset, n, block_sums, parallel_for, ActiveTable().square_sum_f32);
}

void BlockSquareSumsCpu(const BFloat16* x, int64_t offset, int64_t n, double* block_sums,
                        ParallelFor parallel_for) {
  Run(x, offset, n, block_sums, parallel_for, ActiveTable().square_sum_bf16);
}

double TreeSum(double* sums, int64_t count) {
  for (; count > 1; count = (count + 1) / 2) {
    for (int64_t i = 0; i < count / 2; ++i) {
      sums[i] = sums[2 * i] + sums[2 * i + 1];
    }
    if (count % 2 != 0) {
      sums[count / 2] = sums[count - 1];
    }
  }
  return count == 0 ? 0 : sums[0];
}

SquareSum SquareSumCpu(const float* x, int64_t offset, int64_t n, double* scratch,
                       ParallelFor parallel_for) {
  BlockSquareSumsCpu(x, offset, n, scratch, parallel_for);
  return {TreeSum(scratch, NormBlocks(offset, n))};
}

SquareSum SquareSumCpu(const BFloat16* x, int64_t offset, int64_t n, double* scratch,
                       ParallelFor parallel_for) {
  BlockSquareSumsCpu(x, offset, n, scratch, parallel_for);
  return {TreeSum(scratch, NormBlocks(offset, n))};
}

}  // namespace dtrain::kernels
