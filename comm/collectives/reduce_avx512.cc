// AVX-512 F + BW + DQ + VL: one register of 16 floats.
#include "comm/collectives/reduce.h"
#include "comm/collectives/reduce_loops.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)

#include <immintrin.h>

namespace dtrain::comm {
namespace {

// Rounds to nearest even; the low 16 bits become zero. NaN: quiet, same sign.
inline __m512 RoundBf16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_castsi512_ps(_mm512_and_si512(kept, _mm512_set1_epi32(-65536)));
}

struct Lanes {
  __m512 v;

  template <LaneFormat kFormat>
  static Lanes Load(const void* base, size_t index) {
    if constexpr (StoredAsFloat32(kFormat)) {
      return Round<kFormat>({_mm512_loadu_ps(static_cast<const float*>(base) + index)});
    } else {
      const __m256i half = _mm256_loadu_si256(
          reinterpret_cast<const __m256i*>(static_cast<const char*>(base) + index * 2));
      if constexpr (kFormat == LaneFormat::kBFloat16) {
        return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
      } else {
        return {_mm512_cvtph_ps(half)};
      }
    }
  }
  template <LaneFormat kFormat>
  static Lanes Round(Lanes a) {
    if constexpr (RoundedToFloat16(kFormat)) {
      return {_mm512_cvtph_ps(_mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT))};
    } else if constexpr (kFormat != LaneFormat::kFloat32) {
      return {RoundBf16(a.v)};
    } else {
      return a;
    }
  }
  template <LaneFormat kFormat>
  static void Store(void* base, size_t index, Lanes a) {
    if constexpr (StoredAsFloat32(kFormat)) {
      _mm512_storeu_ps(static_cast<float*>(base) + index, a.v);
      return;
    } else {
      auto* p = reinterpret_cast<__m256i*>(static_cast<char*>(base) + index * 2);
      if constexpr (kFormat == LaneFormat::kFloat16) {
        _mm256_storeu_si256(p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
      } else {
        _mm256_storeu_si256(p,
                            _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(a.v), 16)));
      }
    }
  }
  static Lanes Add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
  // maxps gives the second operand when either is NaN; a NaN in the first is put back.
  static __m512 KeepNan(__m512 result, __m512 first) {
    return _mm512_mask_mov_ps(result, _mm512_cmp_ps_mask(first, first, _CMP_UNORD_Q), first);
  }
  static Lanes Max(Lanes a, Lanes b) { return {KeepNan(_mm512_max_ps(a.v, b.v), a.v)}; }
  static Lanes Min(Lanes a, Lanes b) { return {KeepNan(_mm512_min_ps(a.v, b.v), a.v)}; }
  static Lanes Divide(Lanes a, float divisor) {
    return {_mm512_div_ps(a.v, _mm512_set1_ps(divisor))};
  }
};

struct Squares {
  __m512d low = _mm512_setzero_pd();
  __m512d high = _mm512_setzero_pd();

  void AddSquares(Lanes a) {
    const __m512d x = _mm512_cvtps_pd(_mm512_castps512_ps256(a.v));
    const __m512d y = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1));
    low = _mm512_fmadd_pd(x, x, low);
    high = _mm512_fmadd_pd(y, y, high);
  }
  double Fold() const {
    const __m512d eight = _mm512_add_pd(low, high);
    const __m256d four =
        _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }
};

#include "comm/collectives/reduce_loops_impl.h"

}  // namespace

ReduceLoop FindLoopAvx512(LaneFormat format, ReduceOp op) { return Find(format, op); }

}  // namespace dtrain::comm

#else

namespace dtrain::comm {
ReduceLoop FindLoopAvx512(LaneFormat, ReduceOp) { return nullptr; }
}  // namespace dtrain::comm

#endif
