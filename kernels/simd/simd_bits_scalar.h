// U32x16 without SIMD: sixteen unsigned integers beside F32x16, for random bits and formats that no
// instruction converts. The three simd_bits_*.h files give the same interface and the same bits.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/simd/simd_scalar.h"

namespace dtrain::kernels::scalar {
namespace {

struct U32x16 {
  uint32_t v[16];
};

template <class Function>
inline U32x16 EachWord(Function function) {
  U32x16 out;
  for (int i = 0; i < 16; ++i) {
    out.v[i] = function(i);
  }
  return out;
}

inline U32x16 SetWord(uint32_t x) {
  return EachWord([&](int) { return x; });
}
// 0 .. 15.
inline U32x16 LaneNumbers() {
  return EachWord([&](int i) { return static_cast<uint32_t>(i); });
}
inline U32x16 Bits(F32x16 x) {
  return EachWord([&](int i) { return std::bit_cast<uint32_t>(x.v[i]); });
}
inline F32x16 FromBits(U32x16 x) {
  return EachLane([&](int i) { return std::bit_cast<float>(x.v[i]); });
}
// Values below 2^31 as floats, rounded to nearest even.
inline F32x16 ToFloats(U32x16 x) {
  return EachLane([&](int i) { return static_cast<float>(static_cast<int32_t>(x.v[i])); });
}
inline U32x16 operator+(U32x16 a, U32x16 b) {
  return EachWord([&](int i) { return a.v[i] + b.v[i]; });
}
inline U32x16 operator-(U32x16 a, U32x16 b) {
  return EachWord([&](int i) { return a.v[i] - b.v[i]; });
}
inline U32x16 operator&(U32x16 a, U32x16 b) {
  return EachWord([&](int i) { return a.v[i] & b.v[i]; });
}
inline U32x16 operator|(U32x16 a, U32x16 b) {
  return EachWord([&](int i) { return a.v[i] | b.v[i]; });
}
inline U32x16 operator^(U32x16 a, U32x16 b) {
  return EachWord([&](int i) { return a.v[i] ^ b.v[i]; });
}
template <int kBits>
inline U32x16 ShiftLeft(U32x16 a) {
  return EachWord([&](int i) { return a.v[i] << kBits; });
}
template <int kBits>
inline U32x16 ShiftRight(U32x16 a) {
  return EachWord([&](int i) { return a.v[i] >> kBits; });
}
inline U32x16 Xor(U32x16 a, U32x16 b, U32x16 c) { return a ^ b ^ c; }
// The halves of the 64-bit product.
inline void Multiply(U32x16 a, uint32_t b, U32x16& high, U32x16& low) {
  high = EachWord([&](int i) { return static_cast<uint32_t>((uint64_t{a.v[i]} * b) >> 32); });
  low = EachWord([&](int i) { return a.v[i] * b; });
}
// Unsigned.
inline U32x16 Min(U32x16 a, U32x16 b) {
  return EachWord([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline U32x16 Max(U32x16 a, U32x16 b) {
  return EachWord([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
// a where x >= limit, else b.
inline U32x16 SelectAtLeast(U32x16 x, U32x16 limit, U32x16 a, U32x16 b) {
  return EachWord([&](int i) { return x.v[i] >= limit.v[i] ? a.v[i] : b.v[i]; });
}
inline U32x16 Load(const uint32_t* p) {
  return EachWord([&](int i) { return p[i]; });
}
inline void Store(uint32_t* p, U32x16 x) {
  for (int i = 0; i < 16; ++i) {
    p[i] = x.v[i];
  }
}
inline U32x16 Load(const uint8_t* p) {
  return EachWord([&](int i) { return uint32_t{p[i]}; });
}
// REQUIRES: values below 256.
inline void Store(uint8_t* p, U32x16 x) {
  for (int i = 0; i < 16; ++i) {
    p[i] = static_cast<uint8_t>(x.v[i]);
  }
}
// Words as multiplications want them: see the other variants.
using U32Apart = U32x16;
inline U32Apart Apart(U32x16 x) { return x; }
inline U32x16 Together(U32Apart x) { return x; }
inline uint32_t LargestWord(U32x16 x) {
  uint32_t most = 0;
  for (const uint32_t word : x.v) {
    most = word > most ? word : most;
  }
  return most;
}

}  // namespace
}  // namespace dtrain::kernels::scalar
