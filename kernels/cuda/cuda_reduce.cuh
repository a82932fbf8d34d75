// Sums over a block of threads in a fixed order, and largest numbers. Private to this room's .cu
// files.
#pragma once

#include <cstdint>

#include "base/numeric/square_sum.h"

namespace dtrain::kernels {

// The sum over the block, in every thread. `scratch` is shared, one element a warp, and is free
// again after the call's second barrier. REQUIRES: blockDim.x is a multiple of 32.
template <class T>
__device__ inline T BlockSum(T value, T* scratch) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, distance);
  }
  __syncthreads();  // The previous sum has been read.
  if (threadIdx.x % 32 == 0) {
    scratch[threadIdx.x / 32] = value;
  }
  __syncthreads();
  T sum = scratch[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) {
    sum += scratch[warp];
  }
  return sum;
}

// The same of sums of squares, in the block's first thread alone.
__device__ inline double BlockSum(PairedSquareSum sum, PairedSquareSum* scratch) {
  constexpr unsigned kAll = 0xffffffffU;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const float high = __shfl_xor_sync(kAll, sum.high, distance);
    const float low = __shfl_xor_sync(kAll, sum.low, distance);
    sum.Add(high, low);
  }
  if (__any_sync(kAll, sum.far != 0)) {  // NaN is not 0 either.
    for (int distance = 16; distance > 0; distance /= 2) {
      sum.far += __shfl_xor_sync(kAll, sum.far, distance);
    }
  }
  __syncthreads();  // The previous sum has been read.
  if (threadIdx.x % 32 == 0) {
    scratch[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) {
    return 0;
  }
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) {
    sum.Add(scratch[warp].high, scratch[warp].low);
    sum.far += scratch[warp].far;
  }
  return sum.sum();
}

// The largest word of the warp, in every lane. REQUIRES: all lanes call it.
__device__ inline uint32_t WarpMax(uint32_t word) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffU, word, distance);
    word = word > other ? word : other;
  }
  return word;
#else
  return __reduce_max_sync(0xffffffffU, word);  // One instruction, since compute capability 8.0.
#endif
}

// The largest word of the block, in every thread. `scratch` is shared, one element a warp. Unlike
// BlockSum this has no barrier before it writes there, so the block may use `scratch` once.
// REQUIRES: blockDim.x is a multiple of 32; all threads call it.
__device__ inline uint32_t BlockMaxWord(uint32_t word, uint32_t* scratch) {
  word = WarpMax(word);
  if (threadIdx.x % 32 == 0) {
    scratch[threadIdx.x / 32] = word;
  }
  __syncthreads();
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) {
    word = word > scratch[warp] ? word : scratch[warp];
  }
  return word;
}

}  // namespace dtrain::kernels
