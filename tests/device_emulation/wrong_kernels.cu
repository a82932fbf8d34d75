#include "tests/device_emulation/wrong_kernels.h"

namespace dtrain::emulation {
namespace {

// Threads wait at the same line of two files.
__device__ void SyncHalves() {
  threadIdx.x < 128 ? __syncthreads() : SyncBlock({"another.cuh", __LINE__});
}

template <Mistake kMistake>
__global__ void __launch_bounds__(256) WarpSums(const float* in, float* out) {
  __shared__ float values[256];
  if (kMistake != Mistake::kUnwrittenShared) {
    values[255 - threadIdx.x] = in[255 - threadIdx.x];
  }
  if (kMistake == Mistake::kBarrierInABranch && threadIdx.x >= 128) {
    __syncthreads();
  } else if (kMistake == Mistake::kBarrierInAnotherFile) {
    SyncHalves();
  } else if (kMistake != Mistake::kNoBarrier) {
    __syncthreads();
  }
  if (kMistake == Mistake::kLeftTheWarp && threadIdx.x % 32 >= 16) {
    return;
  }
  if (kMistake == Mistake::kShuffleInABranch && threadIdx.x == 5) {
    __syncthreads();
  }
  float sum = values[threadIdx.x];
  if (kMistake == Mistake::kNone || kMistake == Mistake::kNoBarrier ||
      kMistake == Mistake::kUnwrittenShared) {
    __syncthreads();
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffffU, sum, distance);
  }
  values[255 - threadIdx.x] = -1;
  out[threadIdx.x] = sum;
}

__global__ void __launch_bounds__(256) Count(int64_t n, int64_t* out) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) {
    out[i] = i;
  }
}

__global__ void __launch_bounds__(1) CopyFour(const float* in, float* out) {
  *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(in);
}

template <Mistake kMistake>
void Launch(const float* in, float* out) {
  WarpSums<kMistake><<<1, 256, 0, nullptr>>>(in, out);
}

}  // namespace

void LaunchWarpSums(Mistake mistake, const float* in, float* out) {
  switch (mistake) {
    case Mistake::kNone:
      return Launch<Mistake::kNone>(in, out);
    case Mistake::kNoBarrier:
      return Launch<Mistake::kNoBarrier>(in, out);
    case Mistake::kNoSecondBarrier:
      return Launch<Mistake::kNoSecondBarrier>(in, out);
    case Mistake::kBarrierInABranch:
      return Launch<Mistake::kBarrierInABranch>(in, out);
    case Mistake::kBarrierInAnotherFile:
      return Launch<Mistake::kBarrierInAnotherFile>(in, out);
    case Mistake::kLeftTheWarp:
      return Launch<Mistake::kLeftTheWarp>(in, out);
    case Mistake::kShuffleInABranch:
      return Launch<Mistake::kShuffleInABranch>(in, out);
    case Mistake::kUnwrittenShared:
      return Launch<Mistake::kUnwrittenShared>(in, out);
  }
}

void LaunchCount(int64_t n, unsigned blocks, unsigned threads, int64_t* out) {
  Count<<<blocks, threads, 0, nullptr>>>(n, out);
}

void LaunchCopyFour(const float* in, float* out) { CopyFour<<<1, 1, 0, nullptr>>>(in, out); }

}  // namespace dtrain::emulation
