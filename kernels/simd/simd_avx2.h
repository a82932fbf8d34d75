// F32x16 and F64x16 on AVX2 + FMA + F16C; simd_scalar.h documents the interface.
//
// Only for files compiled with those flags. Calls no inline function of a shared header, whose
// AVX2 copy the linker could otherwise give to the whole program.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/numeric/float16.h"

// The loops pull their bodies in: a call for every sixteen elements would load each constant anew.
#define DT_FLATTEN __attribute__((flatten))

namespace dtrain::kernels::avx2 {
namespace {

constexpr bool kManyRegisters = false;  // 16, of eight floats.

struct F32x16 {
  __m256 lo, hi;
};

inline F32x16 Set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }

inline __m256 WidenBf16(__m128i half) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline F32x16 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline F32x16 Load(const BFloat16* p) {
  const auto* const halves = reinterpret_cast<const __m128i*>(p);
  return {WidenBf16(_mm_loadu_si128(halves)), WidenBf16(_mm_loadu_si128(halves + 1))};
}
inline F32x16 Load(const Float16* p) {
  const auto* const halves = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}

// Each lane rounded to the nearest even bf16, which is its upper half; what is below it is left
// over. Not for NaN.
inline __m256i RoundUpperHalf(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}
// The same with NaN made quiet, as a shift to the lower half.
inline __m256i RoundBf16(__m256 x) {
  const __m256i rounded = _mm256_srli_epi32(RoundUpperHalf(x), 16);
  const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(x), 16);
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan));
}
// To look for NaN in two vectors at once and branch takes two thirds of the instructions.
inline bool AnyNan(__m256 a, __m256 b) {
  return __builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)), 0) != 0;
}
inline __m256i Packed(__m256i low, __m256i high) {
  // The pack works within 128-bit halves; the permutation puts its quarters in order.
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
}
__attribute__((cold, noinline)) inline __m256i PackBf16WithNan(F32x16 x) {
  return Packed(RoundBf16(x.lo), RoundBf16(x.hi));
}
inline __m256i PackBf16(F32x16 x) {
  if (AnyNan(x.lo, x.hi)) {
    return PackBf16WithNan(x);
  }
  return Packed(_mm256_srli_epi32(RoundUpperHalf(x.lo), 16),
                _mm256_srli_epi32(RoundUpperHalf(x.hi), 16));
}
inline __m256i PackF16(F32x16 x) {
  return _mm256_set_m128i(_mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT),
                          _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT));
}
inline void Store(float* p, F32x16 x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
inline void Store(BFloat16* p, F32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), PackBf16(x));
}
inline void Store(Float16* p, F32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), PackF16(x));
}
// Pairs of bf16 are 32-bit lanes: the even one is its low half, the odd one its high half.
inline void LoadPairs(const BFloat16* p, F32x16& even, F32x16& odd) {
  const auto* const halves = reinterpret_cast<const __m256i*>(p);
  const __m256i low = _mm256_loadu_si256(halves);
  const __m256i high = _mm256_loadu_si256(halves + 1);
  const __m256i upper = _mm256_set1_epi32(-0x10000);
  even = {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
  odd = {_mm256_castsi256_ps(_mm256_and_si256(low, upper)),
         _mm256_castsi256_ps(_mm256_and_si256(high, upper))};
}
__attribute__((cold, noinline)) inline __m256i PackPairHalfWithNan(__m256 even, __m256 odd) {
  return _mm256_or_si256(RoundBf16(even), _mm256_slli_epi32(RoundBf16(odd), 16));
}
inline __m256i PackPairHalf(__m256 even, __m256 odd) {
  if (AnyNan(even, odd)) {
    return PackPairHalfWithNan(even, odd);
  }
  return _mm256_blend_epi16(_mm256_srli_epi32(RoundUpperHalf(even), 16), RoundUpperHalf(odd), 0xaa);
}
inline void StorePairs(BFloat16* p, F32x16 even, F32x16 odd) {
  auto* const halves = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(halves, PackPairHalf(even.lo, odd.lo));
  _mm256_storeu_si256(halves + 1, PackPairHalf(even.hi, odd.hi));
}
// _mm256_shuffle_ps and the unpacks work within 128-bit halves; the permutations restore the order.
inline void PairsOf(__m256 low, __m256 high, __m256& even, __m256& odd) {
  const auto ordered = [](__m256 x) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8));
  };
  even = ordered(_mm256_shuffle_ps(low, high, 0x88));
  odd = ordered(_mm256_shuffle_ps(low, high, 0xdd));
}
inline void LoadPairs(const float* p, F32x16& even, F32x16& odd) {
  PairsOf(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8), even.lo, odd.lo);
  PairsOf(_mm256_loadu_ps(p + 16), _mm256_loadu_ps(p + 24), even.hi, odd.hi);
}
inline void InOrderHalf(__m256 even, __m256 odd, F32x16& out) {
  const __m256 low = _mm256_unpacklo_ps(even, odd);
  const __m256 high = _mm256_unpackhi_ps(even, odd);
  out = {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}
inline void InOrder(F32x16 even, F32x16 odd, F32x16& first, F32x16& second) {
  InOrderHalf(even.lo, odd.lo, first);
  InOrderHalf(even.hi, odd.hi, second);
}
inline void StorePairs(float* p, F32x16 even, F32x16 odd) {
  F32x16 first, second;
  InOrder(even, odd, first, second);
  Store(p, first);
  Store(p + 16, second);
}
inline __m256 WidenInt8(const void* p) {
  const __m128i bytes = _mm_loadl_epi64(static_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
inline F32x16 Load(const int8_t* p) { return {WidenInt8(p), WidenInt8(p + 8)}; }
inline void Store(int8_t* p, F32x16 x) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi));
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
inline void Stream(float* p, F32x16 x) {
  _mm256_stream_ps(p, x.lo);
  _mm256_stream_ps(p + 8, x.hi);
}
inline void Stream(BFloat16* p, F32x16 x) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), PackBf16(x));
}
inline void Stream(Float16* p, F32x16 x) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), PackF16(x));
}
inline void StreamPairs(BFloat16* p, F32x16 even, F32x16 odd) {
  auto* const halves = reinterpret_cast<__m256i*>(p);
  _mm256_stream_si256(halves, PackPairHalf(even.lo, odd.lo));
  _mm256_stream_si256(halves + 1, PackPairHalf(even.hi, odd.hi));
}
inline void StreamPairs(float* p, F32x16 even, F32x16 odd) {
  F32x16 first, second;
  InOrder(even, odd, first, second);
  Stream(p, first);
  Stream(p + 16, second);
}
inline void StreamFence() { _mm_sfence(); }

inline F32x16 operator+(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline F32x16 operator-(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline F32x16 operator*(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline F32x16 operator/(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline F32x16 Fms(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmsub_ps(a.lo, b.lo, c.lo), _mm256_fmsub_ps(a.hi, b.hi, c.hi)};
}
inline F32x16 NegatedFma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
inline F32x16 Sqrt(F32x16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
inline F32x16 Round(F32x16 a) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, kNearest), _mm256_round_ps(a.hi, kNearest)};
}
inline F32x16 Max(F32x16 a, F32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
inline F32x16 Min(F32x16 a, F32x16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
inline F32x16 Abs(F32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
inline F32x16 NegativeAbs(F32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_or_ps(a.lo, sign), _mm256_or_ps(a.hi, sign)};
}
inline __m256 SignHalf(__m256 a) {
  const __m256 one = _mm256_or_ps(_mm256_and_ps(a, _mm256_set1_ps(-0.0F)), _mm256_set1_ps(1.0F));
  return _mm256_and_ps(_mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_NEQ_UQ), one);
}
inline F32x16 Sign(F32x16 a) { return {SignHalf(a.lo), SignHalf(a.hi)}; }
inline F32x16 SelectPositive(F32x16 x, F32x16 a, F32x16 b) {
  return {_mm256_blendv_ps(a.lo, b.lo, x.lo), _mm256_blendv_ps(a.hi, b.hi, x.hi)};
}
inline __m256 Pow2Half(__m256 t) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23));
}
inline F32x16 Pow2OfLowBits(F32x16 t) { return {Pow2Half(t.lo), Pow2Half(t.hi)}; }

inline __m256 TwiceQuarter(const float* p) {
  const __m256i pairs = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), pairs);
}
inline F32x16 LoadTwice(const float* p) { return {TwiceQuarter(p), TwiceQuarter(p + 4)}; }
inline F32x16 SwapPairs(F32x16 a) {
  return {_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1)};
}
inline F32x16 NegateEven(F32x16 a) {
  const __m256 signs = _mm256_setr_ps(-0.0F, 0, -0.0F, 0, -0.0F, 0, -0.0F, 0);
  return {_mm256_xor_ps(a.lo, signs), _mm256_xor_ps(a.hi, signs)};
}

struct F64x16 {
  __m256d v[4] = {};
};
inline void AddSquare(__m256d& sum, __m128 x) {
  const __m256d wide = _mm256_cvtps_pd(x);
  sum = _mm256_fmadd_pd(wide, wide, sum);  // The product is exact: as multiply and add.
}
inline void AddSquares(F64x16& sum, F32x16 x) {
  AddSquare(sum.v[0], _mm256_castps256_ps128(x.lo));
  AddSquare(sum.v[1], _mm256_extractf128_ps(x.lo, 1));
  AddSquare(sum.v[2], _mm256_castps256_ps128(x.hi));
  AddSquare(sum.v[3], _mm256_extractf128_ps(x.hi, 1));
}
inline void StoreLanes(double* p, const F64x16& sum) {
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_pd(p + 4 * i, sum.v[i]);
  }
}

}  // namespace
}  // namespace dtrain::kernels::avx2
