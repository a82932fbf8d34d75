// F32x16 and F64x16 without SIMD: the oracle of the other variants, and the path of a CPU without
// AVX2.
//
// The three simd_*.h files give the same interface, and every operation rounds as IEEE 754 says, so
// code written on it gives the same bits in all of them. A fused multiply-add is always written
// (the files that include this are compiled with -ffp-contract=off).
#pragma once

#include <cstdint>

#include "base/numeric/float16.h"

// The oracle's loops call their bodies: all in one would take minutes to compile.
#define DT_FLATTEN

namespace dtrain::kernels::scalar {
namespace {

// Whether they have room for Eight of F32x16 (simd_core.h).
constexpr bool kManyRegisters = true;

struct F32x16 {
  float v[16];
};

template <class Function>
inline F32x16 EachLane(Function function) {
  F32x16 out;
  for (int i = 0; i < 16; ++i) {
    out.v[i] = function(i);
  }
  return out;
}

inline F32x16 Set(float x) {
  return EachLane([&](int) { return x; });
}
inline F32x16 Load(const float* p) {
  return EachLane([&](int i) { return p[i]; });
}
inline F32x16 Load(const BFloat16* p) {
  return EachLane([&](int i) { return ToFloat(p[i]); });
}
inline F32x16 Load(const Float16* p) {
  return EachLane([&](int i) { return ToFloat(p[i]); });
}
inline void Store(float* p, F32x16 x) {
  for (int i = 0; i < 16; ++i) {
    p[i] = x.v[i];
  }
}
inline void Store(BFloat16* p, F32x16 x) {
  for (int i = 0; i < 16; ++i) {
    p[i] = ToBFloat16(x.v[i]);
  }
}
inline void Store(Float16* p, F32x16 x) {
  for (int i = 0; i < 16; ++i) {
    p[i] = ToFloat16(x.v[i]);
  }
}
// Elements 2i and 2i + 1 of p [32] are lane i of `even` and of `odd`.
template <class T>
inline void LoadPairs(const T* p, F32x16& even, F32x16& odd) {
  T apart[2][16];
  for (int i = 0; i < 32; ++i) {
    apart[i % 2][i / 2] = p[i];
  }
  even = Load(apart[0]);
  odd = Load(apart[1]);
}
template <class T>
inline void StorePairs(T* p, F32x16 even, F32x16 odd) {
  T apart[2][16];
  Store(apart[0], even);
  Store(apart[1], odd);
  for (int i = 0; i < 32; ++i) {
    p[i] = apart[i % 2][i / 2];
  }
}
inline F32x16 Load(const int8_t* p) {
  return EachLane([&](int i) { return static_cast<float>(p[i]); });
}
// REQUIRES: integral values in [-128, 127].
inline void Store(int8_t* p, F32x16 x) {
  for (int i = 0; i < 16; ++i) {
    p[i] = static_cast<int8_t>(x.v[i]);
  }
}
// Stores past the caches. REQUIRES: p is aligned to its 16 elements.
template <class T>
inline void Stream(T* p, F32x16 x) {
  Store(p, x);
}
template <class T>
inline void StreamPairs(T* p, F32x16 even, F32x16 odd) {
  StorePairs(p, even, odd);
}
inline void StreamFence() {}

inline F32x16 operator+(F32x16 a, F32x16 b) {
  return EachLane([&](int i) { return a.v[i] + b.v[i]; });
}
inline F32x16 operator-(F32x16 a, F32x16 b) {
  return EachLane([&](int i) { return a.v[i] - b.v[i]; });
}
inline F32x16 operator*(F32x16 a, F32x16 b) {
  return EachLane([&](int i) { return a.v[i] * b.v[i]; });
}
inline F32x16 operator/(F32x16 a, F32x16 b) {
  return EachLane([&](int i) { return a.v[i] / b.v[i]; });
}
inline F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {
  return EachLane([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
// a * b - c and c - a * b, rounded once.
inline F32x16 Fms(F32x16 a, F32x16 b, F32x16 c) {
  return EachLane([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], -c.v[i]); });
}
inline F32x16 NegatedFma(F32x16 a, F32x16 b, F32x16 c) {
  return EachLane([&](int i) { return __builtin_fmaf(-a.v[i], b.v[i], c.v[i]); });
}
inline F32x16 Sqrt(F32x16 a) {
  return EachLane([&](int i) { return __builtin_sqrtf(a.v[i]); });
}
// The nearest integer, ties to even.
inline F32x16 Round(F32x16 a) {
  return EachLane([&](int i) { return __builtin_rintf(a.v[i]); });
}
// b where either is NaN, as maxps and minps do.
inline F32x16 Max(F32x16 a, F32x16 b) {
  return EachLane([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F32x16 Min(F32x16 a, F32x16 b) {
  return EachLane([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
// |a|.
inline F32x16 Abs(F32x16 a) {
  return EachLane([&](int i) { return __builtin_fabsf(a.v[i]); });
}
// -|a|.
inline F32x16 NegativeAbs(F32x16 a) {
  return EachLane([&](int i) { return -__builtin_fabsf(a.v[i]); });
}
// 1 with a's sign; 0 for +-0. NaN gives any of them.
inline F32x16 Sign(F32x16 a) {
  return EachLane([&](int i) { return a.v[i] == 0 ? 0.0F : __builtin_copysignf(1.0F, a.v[i]); });
}
// a where the sign bit of x is clear, else b.
inline F32x16 SelectPositive(F32x16 x, F32x16 a, F32x16 b) {
  return EachLane([&](int i) { return __builtin_signbit(x.v[i]) != 0 ? b.v[i] : a.v[i]; });
}
// 2^k, where the lowest bits of t are k + 127, k's biased exponent.
inline F32x16 Pow2OfLowBits(F32x16 t) {
  return EachLane(
      [&](int i) { return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, t.v[i]) << 23); });
}
// Lane i has element i / 2 of p [8].
inline F32x16 LoadTwice(const float* p) {
  return EachLane([&](int i) { return p[i / 2]; });
}
// Lanes 2i and 2i + 1 change places.
inline F32x16 SwapPairs(F32x16 a) {
  return EachLane([&](int i) { return a.v[i ^ 1]; });
}
// Even lanes change sign.
inline F32x16 NegateEven(F32x16 a) {
  return EachLane([&](int i) { return i % 2 == 0 ? -a.v[i] : a.v[i]; });
}

// Sixteen fp64 lanes that add up squares; lane i takes element i. The product of two fp32 values
// is exact in fp64.
struct F64x16 {
  double v[16] = {};
};
inline void AddSquares(F64x16& sum, F32x16 x) {
  for (int i = 0; i < 16; ++i) {
    sum.v[i] += static_cast<double>(x.v[i]) * static_cast<double>(x.v[i]);
  }
}
inline void StoreLanes(double* p, const F64x16& sum) {
  for (int i = 0; i < 16; ++i) {
    p[i] = sum.v[i];
  }
}

}  // namespace
}  // namespace dtrain::kernels::scalar
