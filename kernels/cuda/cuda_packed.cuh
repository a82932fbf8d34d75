// Sixteen elements a thread, for formats of one byte an element: their 16-byte access is sixteen
// elements. Private to this room's .cu files.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_vector.cuh"

namespace dtrain::kernels {

constexpr int kPack = 16;

struct Packed {
  float v[kPack];
};

template <class T>
__device__ inline Packed LoadPacked(const T* p) {
  Packed out;
  const Lanes<8> low = LoadLanes<8>(p);
  const Lanes<8> high = LoadLanes<8>(p + 8);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    out.v[i] = low.v[i];
    out.v[i + 8] = high.v[i];
  }
  return out;
}

template <class T>
__device__ inline void StorePacked(T* p, const Packed& x) {
  Lanes<8> low;
  Lanes<8> high;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    low.v[i] = x.v[i];
    high.v[i] = x.v[i + 8];
  }
  StoreLanes(p, low);
  StoreLanes(p + 8, high);
}

// Sixteen bytes of B = int8_t or uint8_t at once.
template <class B>
struct Bytes {
  B v[kPack];
};
template <class B>
__device__ inline Bytes<B> LoadBytes(const B* p) {
  const uint4 raw = *reinterpret_cast<const uint4*>(p);
  Bytes<B> out;
  memcpy(&out, &raw, sizeof(raw));
  return out;
}
template <class B>
__device__ inline void StoreBytes(B* p, const Bytes<B>& x) {
  uint4 raw;
  memcpy(&raw, &x, sizeof(raw));
  *reinterpret_cast<uint4*>(p) = raw;
}

}  // namespace dtrain::kernels
