// Sixteen elements a thread, for formats of one byte an element: their 16-byte access is sixteen
// elements. Private to this room's .cu files.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_vector.cuh"

namespace dtrain::kernels {

constexpr int kPack = 16;

// The elements of a thread whose output is of type T. In fp32 sixteen would be 64 bytes a thread,
// of which each 16-byte store of a warp fills half a sector: 54 % of the copy rate on an H100.
template <class T>
constexpr int kPackInto = sizeof(T) == 4 ? kPack / 2 : kPack;

template <int kCount>
struct Floats {
  float v[kCount];
};
using Packed = Floats<kPack>;

// REQUIRES: kCount is a multiple of 8, as below.
template <int kCount = kPack, class T>
__device__ inline Floats<kCount> LoadPacked(const T* p) {
  Floats<kCount> out;
#pragma unroll
  for (int piece = 0; piece < kCount; piece += 8) {
    const Lanes<8> lanes = LoadLanes<8>(p + piece);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out.v[piece + i] = lanes.v[i];
    }
  }
  return out;
}

template <class T, int kCount>
__device__ inline void StorePacked(T* p, const Floats<kCount>& x) {
#pragma unroll
  for (int piece = 0; piece < kCount; piece += 8) {
    Lanes<8> lanes;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      lanes.v[i] = x.v[piece + i];
    }
    StoreLanes(p + piece, lanes);
  }
}

// kCount bytes of B = int8_t or uint8_t at once: 8 or 16.
template <class B, int kCount = kPack>
struct Bytes {
  B v[kCount];
};
template <int kCount>
struct WordOf;
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<16> {
  using Type = uint4;
};
template <int kCount = kPack, class B>
__device__ inline Bytes<B, kCount> LoadBytes(const B* p) {
  const auto raw = *reinterpret_cast<const typename WordOf<kCount>::Type*>(p);
  Bytes<B, kCount> out;
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
