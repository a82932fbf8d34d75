// U32x16 on AVX2; simd_bits_scalar.h documents the interface.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/simd/simd_avx2.h"

namespace dtrain::kernels::avx2 {
namespace {

struct U32x16 {
  __m256i lo, hi;
};

inline U32x16 SetWord(uint32_t x) {
  const __m256i all = _mm256_set1_epi32(static_cast<int>(x));
  return {all, all};
}
inline U32x16 LaneNumbers() {
  return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
          _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}
inline U32x16 Bits(F32x16 x) { return {_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)}; }
inline F32x16 FromBits(U32x16 x) { return {_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi)}; }
inline F32x16 ToFloats(U32x16 x) { return {_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)}; }
inline U32x16 operator+(U32x16 a, U32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
inline U32x16 operator-(U32x16 a, U32x16 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
inline U32x16 operator&(U32x16 a, U32x16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
inline U32x16 operator|(U32x16 a, U32x16 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
inline U32x16 operator^(U32x16 a, U32x16 b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
template <int kBits>
inline U32x16 ShiftLeft(U32x16 a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
template <int kBits>
inline U32x16 ShiftRight(U32x16 a) {
  return {_mm256_srli_epi32(a.lo, kBits), _mm256_srli_epi32(a.hi, kBits)};
}
inline void MultiplyHalf(__m256i a, __m256i b, __m256i& high, __m256i& low) {
  const __m256i even = _mm256_mul_epu32(a, b);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}
inline void Multiply(U32x16 a, uint32_t b, U32x16& high, U32x16& low) {
  const __m256i factor = _mm256_set1_epi32(static_cast<int>(b));
  MultiplyHalf(a.lo, factor, high.lo, low.lo);
  MultiplyHalf(a.hi, factor, high.hi, low.hi);
}
inline U32x16 Xor(U32x16 a, U32x16 b, U32x16 c) { return a ^ b ^ c; }
inline U32x16 Min(U32x16 a, U32x16 b) {
  return {_mm256_min_epu32(a.lo, b.lo), _mm256_min_epu32(a.hi, b.hi)};
}
inline U32x16 Max(U32x16 a, U32x16 b) {
  return {_mm256_max_epu32(a.lo, b.lo), _mm256_max_epu32(a.hi, b.hi)};
}
inline __m256i SelectAtLeastHalf(__m256i x, __m256i limit, __m256i a, __m256i b) {
  return _mm256_blendv_epi8(b, a, _mm256_cmpeq_epi32(_mm256_max_epu32(x, limit), x));
}
inline U32x16 SelectAtLeast(U32x16 x, U32x16 limit, U32x16 a, U32x16 b) {
  return {SelectAtLeastHalf(x.lo, limit.lo, a.lo, b.lo),
          SelectAtLeastHalf(x.hi, limit.hi, a.hi, b.hi)};
}
inline U32x16 Load(const uint32_t* p) {
  const auto* const halves = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
inline void Store(uint32_t* p, U32x16 x) {
  auto* const halves = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(halves, x.lo);
  _mm256_storeu_si256(halves + 1, x.hi);
}
inline U32x16 Load(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
inline void Store(uint8_t* p, U32x16 x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(x.lo, x.hi), 0xd8);
  const __m128i bytes =
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

// Sixteen words, evens and odds apart in the low halves of 64-bit lanes, where a multiplication
// reads them; the high halves hold anything.
struct U32Apart {
  U32x16 even, odd;
};
inline U32x16 ShiftRightWide(U32x16 x) {
  return {_mm256_srli_epi64(x.lo, 32), _mm256_srli_epi64(x.hi, 32)};
}
inline U32Apart Apart(U32x16 x) { return {x, ShiftRightWide(x)}; }
inline U32x16 Together(U32Apart x) {
  return {_mm256_blend_epi32(x.even.lo, _mm256_slli_epi64(x.odd.lo, 32), 0xaa),
          _mm256_blend_epi32(x.even.hi, _mm256_slli_epi64(x.odd.hi, 32), 0xaa)};
}
inline U32Apart operator+(U32Apart a, U32Apart b) { return {a.even + b.even, a.odd + b.odd}; }
inline U32Apart Xor(U32Apart a, U32Apart b, U32Apart c) {
  return {Xor(a.even, b.even, c.even), Xor(a.odd, b.odd, c.odd)};
}
inline U32x16 MultiplyWide(U32x16 a, uint32_t b) {
  const __m256i factor = _mm256_set1_epi32(static_cast<int>(b));
  return {_mm256_mul_epu32(a.lo, factor), _mm256_mul_epu32(a.hi, factor)};
}
inline void Multiply(U32Apart a, uint32_t b, U32Apart& high, U32Apart& low) {
  low = {MultiplyWide(a.even, b), MultiplyWide(a.odd, b)};
  high = {ShiftRightWide(low.even), ShiftRightWide(low.odd)};
}
inline uint32_t LargestWord(U32x16 x) {
  uint32_t words[16];
  Store(words, x);
  uint32_t most = 0;
  for (const uint32_t word : words) {
    most = word > most ? word : most;
  }
  return most;
}

}  // namespace
}  // namespace dtrain::kernels::avx2
