// AVX2 + FMA + F16C: two registers of 8 floats.
#include "comm/collectives/reduce.h"
#include "comm/collectives/reduce_loops.h"

#if defined(__AVX2__) && defined(__F16C__)

#include <immintrin.h>

namespace dtrain::comm {
namespace {

inline __m256 FromBf16(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

// Rounds to nearest even; the low 16 bits become zero. NaN: quiet, same sign.
inline __m256 RoundBf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i kept = _mm256_blendv_epi8(rounded, quiet, nan);
  return _mm256_castsi256_ps(_mm256_and_si256(kept, _mm256_set1_epi32(-65536)));
}

struct Lanes {
  __m256 lo, hi;

  template <LaneFormat kFormat>
  static Lanes Load(const void* base, size_t index) {
    if constexpr (StoredAsFloat32(kFormat)) {
      const float* p = static_cast<const float*>(base) + index;
      const Lanes r{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
      return Round<kFormat>(r);
    } else {
      const auto* p = reinterpret_cast<const __m128i*>(static_cast<const char*>(base) + index * 2);
      const __m128i a = _mm_loadu_si128(p);
      const __m128i b = _mm_loadu_si128(p + 1);
      if constexpr (kFormat == LaneFormat::kBFloat16) {
        return {FromBf16(a), FromBf16(b)};
      } else {
        return {_mm256_cvtph_ps(a), _mm256_cvtph_ps(b)};
      }
    }
  }
  template <LaneFormat kFormat>
  static Lanes Round(Lanes a) {
    if constexpr (RoundedToFloat16(kFormat)) {
      return {_mm256_cvtph_ps(_mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT)),
              _mm256_cvtph_ps(_mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT))};
    } else if constexpr (kFormat != LaneFormat::kFloat32) {
      return {RoundBf16(a.lo), RoundBf16(a.hi)};
    } else {
      return a;
    }
  }
  template <LaneFormat kFormat>
  static void Store(void* base, size_t index, Lanes a) {
    if constexpr (StoredAsFloat32(kFormat)) {
      float* p = static_cast<float*>(base) + index;
      _mm256_storeu_ps(p, a.lo);
      _mm256_storeu_ps(p + 8, a.hi);
    } else if constexpr (kFormat == LaneFormat::kFloat16) {
      auto* p = reinterpret_cast<__m128i*>(static_cast<char*>(base) + index * 2);
      _mm_storeu_si128(p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
      _mm_storeu_si128(p + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
    } else {
      const __m256i x = _mm256_srli_epi32(_mm256_castps_si256(a.lo), 16);
      const __m256i y = _mm256_srli_epi32(_mm256_castps_si256(a.hi), 16);
      const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, y), 0xd8);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<char*>(base) + index * 2), packed);
    }
  }
  static Lanes Add(Lanes a, Lanes b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
  }
  // maxps gives the second operand when either is NaN; a NaN in the first is put back.
  static __m256 KeepNan(__m256 result, __m256 first) {
    return _mm256_blendv_ps(result, first, _mm256_cmp_ps(first, first, _CMP_UNORD_Q));
  }
  static Lanes Max(Lanes a, Lanes b) {
    return {KeepNan(_mm256_max_ps(a.lo, b.lo), a.lo), KeepNan(_mm256_max_ps(a.hi, b.hi), a.hi)};
  }
  static Lanes Min(Lanes a, Lanes b) {
    return {KeepNan(_mm256_min_ps(a.lo, b.lo), a.lo), KeepNan(_mm256_min_ps(a.hi, b.hi), a.hi)};
  }
  static Lanes Divide(Lanes a, float divisor) {
    const __m256 d = _mm256_set1_ps(divisor);
    return {_mm256_div_ps(a.lo, d), _mm256_div_ps(a.hi, d)};
  }
};

struct Squares {
  __m256d lane[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(),
                     _mm256_setzero_pd()};

  static __m256d Add(__m256d sum, __m128 x) {
    const __m256d wide = _mm256_cvtps_pd(x);
    return _mm256_fmadd_pd(wide, wide, sum);
  }
  void AddSquares(Lanes a) {
    lane[0] = Add(lane[0], _mm256_castps256_ps128(a.lo));
    lane[1] = Add(lane[1], _mm256_extractf128_ps(a.lo, 1));
    lane[2] = Add(lane[2], _mm256_castps256_ps128(a.hi));
    lane[3] = Add(lane[3], _mm256_extractf128_ps(a.hi, 1));
  }
  double Fold() const {
    const __m256d four =
        _mm256_add_pd(_mm256_add_pd(lane[0], lane[2]), _mm256_add_pd(lane[1], lane[3]));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }
};

#include "comm/collectives/reduce_loops_impl.h"

}  // namespace

ReduceLoop FindLoopAvx2(LaneFormat format, ReduceOp op) { return Find(format, op); }

}  // namespace dtrain::comm

#else

namespace dtrain::comm {
ReduceLoop FindLoopAvx2(LaneFormat, ReduceOp) { return nullptr; }
}  // namespace dtrain::comm

#endif
