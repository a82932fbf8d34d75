// F32x16 and F64x16 on AVX-512 F + BW + DQ + VL; simd_scalar.h documents the interface.
//
// Only for files compiled with those flags; as simd_avx2.h, it calls no shared inline function.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/numeric/float16.h"

// The loops pull their bodies in: a call for every sixteen elements would load each constant anew.
#define DT_FLATTEN __attribute__((flatten))

namespace dtrain::kernels::avx512 {
namespace {

constexpr bool kManyRegisters = true;  // 32, of sixteen floats.

struct F32x16 {
  __m512 v;
};

inline F32x16 Set(float x) { return {_mm512_set1_ps(x)}; }
inline F32x16 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F32x16 Load(const BFloat16* p) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}
inline F32x16 Load(const Float16* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

// Each lane as bf16 in its low 16 bits: nearest even, NaN made quiet (vcvtneps2bf16 would flush
// subnormal values to zero).
inline __m512i RoundBf16(F32x16 x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i high = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(
      _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40));
}
inline __m256i PackBf16(F32x16 x) { return _mm512_cvtepi32_epi16(RoundBf16(x)); }
inline __m256i PackF16(F32x16 x) { return _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT); }
inline void Store(float* p, F32x16 x) { _mm512_storeu_ps(p, x.v); }
inline void Store(BFloat16* p, F32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), PackBf16(x));
}
inline void Store(Float16* p, F32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), PackF16(x));
}
// Pairs of bf16 are 32-bit lanes: the even one is its low half, the odd one its high half.
inline void LoadPairs(const BFloat16* p, F32x16& even, F32x16& odd) {
  const __m512i both = _mm512_loadu_si512(p);
  even.v = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  odd.v = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-0x10000)));
}
// Rounds as RoundBf16 does and leaves the result in the high half; a NaN may become anything.
inline __m512i RoundHigh(F32x16 x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __m512i sum = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  return _mm512_mask_add_epi32(sum, odd, sum, _mm512_set1_epi32(1));
}
inline __m512i PackPairs(F32x16 even, F32x16 odd) {
  __m512i low = RoundHigh(even);
  __m512i high = RoundHigh(odd);
  if (__builtin_expect(_mm512_cmp_ps_mask(even.v, odd.v, _CMP_UNORD_Q) != 0, 0)) {
    low = _mm512_slli_epi32(RoundBf16(even), 16);
    high = _mm512_slli_epi32(RoundBf16(odd), 16);
  }
  // (low >> 16) | (high & ~0xffff).
  return _mm512_ternarylogic_epi32(_mm512_srli_epi32(low, 16), high, _mm512_set1_epi32(-0x10000),
                                   0xf8);
}
inline void StorePairs(BFloat16* p, F32x16 even, F32x16 odd) {
  _mm512_storeu_si512(p, PackPairs(even, odd));
}
inline void LoadPairs(const float* p, F32x16& even, F32x16& odd) {
  const __m512i evens =
      _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
  const __m512 low = _mm512_loadu_ps(p);
  const __m512 high = _mm512_loadu_ps(p + 16);
  even.v = _mm512_permutex2var_ps(low, evens, high);
  odd.v = _mm512_permutex2var_ps(low, odds, high);
}
inline void InOrder(F32x16 even, F32x16 odd, F32x16& first, F32x16& second) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  first.v = _mm512_permutex2var_ps(even.v, low, odd.v);
  second.v = _mm512_permutex2var_ps(even.v, high, odd.v);
}
inline void StorePairs(float* p, F32x16 even, F32x16 odd) {
  F32x16 first, second;
  InOrder(even, odd, first, second);
  Store(p, first);
  Store(p + 16, second);
}
inline F32x16 Load(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}
inline void Store(int8_t* p, F32x16 x) {
  const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
inline void Stream(float* p, F32x16 x) { _mm512_stream_ps(p, x.v); }
inline void Stream(BFloat16* p, F32x16 x) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), PackBf16(x));
}
inline void Stream(Float16* p, F32x16 x) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), PackF16(x));
}
inline void StreamPairs(BFloat16* p, F32x16 even, F32x16 odd) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p), PackPairs(even, odd));
}
inline void StreamPairs(float* p, F32x16 even, F32x16 odd) {
  F32x16 first, second;
  InOrder(even, odd, first, second);
  Stream(p, first);
  Stream(p + 16, second);
}
inline void StreamFence() { _mm_sfence(); }

inline F32x16 operator+(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32x16 operator-(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32x16 operator*(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32x16 operator/(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F32x16 Fms(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmsub_ps(a.v, b.v, c.v)}; }
inline F32x16 NegatedFma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
inline F32x16 Sqrt(F32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
inline F32x16 Round(F32x16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT)}; }
inline F32x16 Max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32x16 Min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F32x16 Abs(F32x16 a) { return {_mm512_abs_ps(a.v)}; }
inline F32x16 NegativeAbs(F32x16 a) { return {_mm512_or_ps(a.v, _mm512_set1_ps(-0.0F))}; }
inline F32x16 Sign(F32x16 a) {
  const __m512 one = _mm512_or_ps(_mm512_and_ps(a.v, _mm512_set1_ps(-0.0F)), _mm512_set1_ps(1.0F));
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, _mm512_setzero_ps(), _CMP_NEQ_UQ), one)};
}
inline F32x16 SelectPositive(F32x16 x, F32x16 a, F32x16 b) {
  return {_mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(x.v)), a.v, b.v)};
}
inline F32x16 Pow2OfLowBits(F32x16 t) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t.v), 23))};
}

inline F32x16 LoadTwice(const float* p) {
  const __m512i pairs = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return {_mm512_permutexvar_ps(pairs, _mm512_castps256_ps512(_mm256_loadu_ps(p)))};
}
inline F32x16 SwapPairs(F32x16 a) { return {_mm512_permute_ps(a.v, 0xb1)}; }
inline F32x16 NegateEven(F32x16 a) {
  const __m512 zeros = _mm512_set1_ps(-0.0F);
  return {_mm512_mask_xor_ps(a.v, 0x5555, a.v, zeros)};
}

struct F64x16 {
  __m512d v[2] = {};
};
inline void AddSquares(F64x16& sum, F32x16 x) {
  const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x.v));
  const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1));
  sum.v[0] = _mm512_fmadd_pd(low, low, sum.v[0]);  // Exact product: as multiply and add.
  sum.v[1] = _mm512_fmadd_pd(high, high, sum.v[1]);
}
inline void StoreLanes(double* p, const F64x16& sum) {
  _mm512_storeu_pd(p, sum.v[0]);
  _mm512_storeu_pd(p + 8, sum.v[1]);
}

}  // namespace
}  // namespace dtrain::kernels::avx512
