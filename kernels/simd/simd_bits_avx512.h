// U32x16 on AVX-512; simd_bits_scalar.h documents the interface.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/simd/simd_avx512.h"

namespace dtrain::kernels::avx512 {
namespace {

struct U32x16 {
  __m512i v;
};

inline U32x16 SetWord(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
inline U32x16 LaneNumbers() {
  return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}
inline U32x16 Bits(F32x16 x) { return {_mm512_castps_si512(x.v)}; }
inline F32x16 FromBits(U32x16 x) { return {_mm512_castsi512_ps(x.v)}; }
inline F32x16 ToFloats(U32x16 x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline U32x16 operator+(U32x16 a, U32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline U32x16 operator-(U32x16 a, U32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline U32x16 operator&(U32x16 a, U32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
inline U32x16 operator|(U32x16 a, U32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
inline U32x16 operator^(U32x16 a, U32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int kBits>
inline U32x16 ShiftLeft(U32x16 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
inline U32x16 ShiftRight(U32x16 a) {
  return {_mm512_srli_epi32(a.v, kBits)};
}
inline void Multiply(U32x16 a, uint32_t b, U32x16& high, U32x16& low) {
  const __m512i factor = _mm512_set1_epi32(static_cast<int>(b));
  const __m512i even = _mm512_mul_epu32(a.v, factor);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), factor);
  low.v = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
  high.v = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
}
inline U32x16 Xor(U32x16 a, U32x16 b, U32x16 c) {
  return {_mm512_ternarylogic_epi32(a.v, b.v, c.v, 0x96)};
}
inline U32x16 Min(U32x16 a, U32x16 b) { return {_mm512_min_epu32(a.v, b.v)}; }
inline U32x16 Max(U32x16 a, U32x16 b) { return {_mm512_max_epu32(a.v, b.v)}; }
inline U32x16 SelectAtLeast(U32x16 x, U32x16 limit, U32x16 a, U32x16 b) {
  return {_mm512_mask_blend_epi32(_mm512_cmpge_epu32_mask(x.v, limit.v), b.v, a.v)};
}
inline U32x16 Load(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void Store(uint32_t* p, U32x16 x) { _mm512_storeu_si512(p, x.v); }
inline U32x16 Load(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline void Store(uint8_t* p, U32x16 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
}

// Sixteen words, evens and odds apart in the low halves of 64-bit lanes, where a multiplication
// reads them; the high halves hold anything.
struct U32Apart {
  __m512i even, odd;
};
inline U32Apart Apart(U32x16 x) { return {x.v, _mm512_srli_epi64(x.v, 32)}; }
inline U32x16 Together(U32Apart x) {
  return {_mm512_mask_blend_epi32(0xaaaa, x.even, _mm512_slli_epi64(x.odd, 32))};
}
inline U32Apart operator+(U32Apart a, U32Apart b) {
  return {_mm512_add_epi32(a.even, b.even), _mm512_add_epi32(a.odd, b.odd)};
}
inline U32Apart Xor(U32Apart a, U32Apart b, U32Apart c) {
  return {_mm512_ternarylogic_epi32(a.even, b.even, c.even, 0x96),
          _mm512_ternarylogic_epi32(a.odd, b.odd, c.odd, 0x96)};
}
inline void Multiply(U32Apart a, uint32_t b, U32Apart& high, U32Apart& low) {
  const __m512i factor = _mm512_set1_epi32(static_cast<int>(b));
  low = {_mm512_mul_epu32(a.even, factor), _mm512_mul_epu32(a.odd, factor)};
  // A shuffle and a shift: they run on different ports.
  high = {_mm512_shuffle_epi32(low.even, _MM_PERM_DDBB), _mm512_srli_epi64(low.odd, 32)};
}
inline uint32_t LargestWord(U32x16 x) { return _mm512_reduce_max_epu32(x.v); }

}  // namespace
}  // namespace dtrain::kernels::avx512
