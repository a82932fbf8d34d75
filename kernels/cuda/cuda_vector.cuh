// Eight elements a thread through 16-byte loads and stores, and the element-wise kernel on them.
// Private to this room's .cu files.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "base/numeric/float16.h"
#include "kernels/cuda/cuda_index.h"
#include "kernels/cuda/cuda_launch.h"

namespace dtrain::kernels {

__device__ inline float Widen(float x) { return x; }
__device__ inline float Widen(BFloat16 x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}
__device__ inline float Widen(Float16 x) { return __half2float(__ushort_as_half(x.bits)); }
template <class T>
__device__ T Narrow(float x);
template <>
__device__ inline float Narrow<float>(float x) {
  return x;
}
// Rounds as ToBFloat16 of base/numeric/float16.h does, except that every NaN becomes 0x7fff. It is
// the hardware's conversion: the same in integer operations is near all that a multiprocessor can
// do of them while memory gives its full rate.
template <>
__device__ inline BFloat16 Narrow<BFloat16>(float x) {
  const __nv_bfloat16 rounded = __float2bfloat16_rn(x);
  BFloat16 out;
  memcpy(&out, &rounded, sizeof(out));
  return out;
}
template <>
__device__ inline Float16 Narrow<Float16>(float x) {
  return {__half_as_ushort(__float2half_rn(x))};
}

// Rounds two numbers, `first` to the low half, in one instruction since compute capability 8.0. It
// makes every NaN 0x7fff.
template <class T>
__device__ uint32_t NarrowPair(float first, float second) {
  uint32_t word;
  if constexpr (std::is_same_v<T, BFloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    memcpy(&word, &pair, sizeof(word));
  } else {
    const __half2 pair = __floats2half2_rn(first, second);
    memcpy(&word, &pair, sizeof(word));
  }
  return word;
}

// The lanes of one thread: kWidth of them, or one where alignment or the end forbids.
template <int kLanes>
struct Lanes {
  float v[kLanes];
};

template <int kLanes, class T>
__device__ inline Lanes<kLanes> LoadLanes(const T* p) {
  Lanes<kLanes> out;
  if constexpr (kLanes == 1) {
    out.v[0] = Widen(*p);
  } else {
    constexpr int kPieces = kLanes * sizeof(T) / 16;
    uint4 raw[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      raw[i] = reinterpret_cast<const uint4*>(p)[i];
    }
    T elements[kLanes];
    memcpy(elements, raw, sizeof(raw));
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      out.v[i] = Widen(elements[i]);
    }
  }
  return out;
}

// The lanes as they lie in memory, in pieces of 16 bytes.
template <int kLanes, class T>
struct Pieces {
  static constexpr int kCount = kLanes * sizeof(T) / 16;
  uint4 v[kCount];
};
template <class T, int kLanes>
__device__ inline Pieces<kLanes, T> PiecesOf(const Lanes<kLanes>& x) {
  constexpr int kEach = 4 / sizeof(T);
  uint32_t words[kLanes / kEach];
#pragma unroll
  for (int i = 0; i < kLanes / kEach; ++i) {
    if constexpr (kEach == 2) {
      words[i] = NarrowPair<T>(x.v[2 * i], x.v[2 * i + 1]);
    } else {
      words[i] = __float_as_uint(x.v[i]);
    }
  }
  Pieces<kLanes, T> pieces;
  memcpy(pieces.v, words, sizeof(pieces));
  return pieces;
}

template <int kLanes, class T>
__device__ inline void StoreLanes(T* p, const Lanes<kLanes>& x) {
  if constexpr (kLanes == 1) {
    *p = Narrow<T>(x.v[0]);
  } else {
    const Pieces<kLanes, T> pieces = PiecesOf<T>(x);
#pragma unroll
    for (int i = 0; i < pieces.kCount; ++i) {
      reinterpret_cast<uint4*>(p)[i] = pieces.v[i];
    }
  }
}

// The same by an instruction. nvcc cuts an assignment of 16 bytes into its elements and joins them
// again, which fails here and there in a long kernel (tests/kernels/cuda_code_test.py finds it).
template <int kLanes, class T>
__device__ inline void StoreLanesWhole(T* p, const Lanes<kLanes>& x) {
  if constexpr (kLanes == 1) {
    StoreLanes(p, x);
  } else {
    const Pieces<kLanes, T> pieces = PiecesOf<T>(x);
#pragma unroll
    for (int i = 0; i < pieces.kCount; ++i) {
      __stwb(reinterpret_cast<uint4*>(p) + i, pieces.v[i]);
    }
  }
}

// Stores x, and returns what a load of it would give: each lane as T holds it.
template <int kLanes, class T>
__device__ inline Lanes<kLanes> StoreRounded(T* p, const Lanes<kLanes>& x) {
  T elements[kLanes];
  if constexpr (kLanes == 1) {
    elements[0] = Narrow<T>(x.v[0]);
    *p = elements[0];
  } else {
    const Pieces<kLanes, T> pieces = PiecesOf<T>(x);
#pragma unroll
    for (int i = 0; i < pieces.kCount; ++i) {
      reinterpret_cast<uint4*>(p)[i] = pieces.v[i];
    }
    memcpy(elements, pieces.v, sizeof(elements));
  }
  Lanes<kLanes> rounded;
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    rounded.v[i] = Widen(elements[i]);
  }
  return rounded;
}

// body.Run<kLanes>(i) handles elements [i, i + kLanes).
template <bool kAligned, class Body>
__global__ void __launch_bounds__(kElementThreads) ElementwiseKernel(int64_t n, Body body) {
  const int64_t thread = GridElement(blockIdx.x, threadIdx.x, blockDim.x, 1);
  const ElementSpan span = ElementSpanOf(thread, n);
  if (kAligned && span.whole()) {
    body.template Run<kWidth>(span.first);
    return;
  }
  for (int64_t i = span.first; i < span.end; ++i) {
    body.template Run<1>(i);
  }
}

template <class Body>
absl::Status LaunchElementwise(const char* name, int64_t n, bool aligned, const Body& body,
                               CudaStream stream) {
  RequireStream(stream);
  if (n == 0) {
    return absl::OkStatus();
  }
  const auto blocks = static_cast<unsigned>(ElementBlocks(n));
  if (aligned) {
    ElementwiseKernel<true><<<blocks, kElementThreads, 0, stream>>>(n, body);
  } else {
    ElementwiseKernel<false><<<blocks, kElementThreads, 0, stream>>>(n, body);
  }
  return LaunchStatus(name);
}

}  // namespace dtrain::kernels
