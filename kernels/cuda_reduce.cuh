// Sums over a block of threads in a fixed order. Private to this room's .cu files.
#pragma once

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

}  // namespace dtrain::kernels
