#include "bench/kernels/probe.h"

#include <immintrin.h>

#include "base/check.h"

namespace dtrain::bench {
namespace {

// The streams' counts are constants so that the loop over them is unrolled.
template <int kRead4, int kRead2, int kWrite4, int kWrite2, int kInPlace, bool kNonTemporal>
__attribute__((target("avx2"))) float Run(const ProbeStreams& streams, int64_t begin, int64_t end) {
  const auto at = [&](int stream) { return streams.base + stream * streams.stride; };
  __m256 total = _mm256_setzero_ps();
  for (int64_t i = begin; i < end; i += 16) {
    __m256 low = total;
    __m256 high = total;
#pragma GCC unroll 8
    for (int s = 0; s < kRead4; ++s) {
      const auto* const p = reinterpret_cast<const float*>(at(s)) + i;
      low = _mm256_xor_ps(low, _mm256_load_ps(p));
      high = _mm256_xor_ps(high, _mm256_load_ps(p + 8));
    }
#pragma GCC unroll 8
    for (int s = 0; s < kRead2; ++s) {
      const auto* const p = reinterpret_cast<const float*>(at(kRead4 + s) + 2 * i);
      low = _mm256_xor_ps(low, _mm256_load_ps(p));
    }
#pragma GCC unroll 8
    for (int s = 0; s < kWrite4; ++s) {
      const bool in_place = s < kInPlace;
      auto* const p =
          reinterpret_cast<float*>(at(in_place ? s : kRead4 + kRead2 + s - kInPlace)) + i;
      if (kNonTemporal && !in_place) {
        _mm256_stream_ps(p, low);
        _mm256_stream_ps(p + 8, high);
      } else {
        _mm256_store_ps(p, low);
        _mm256_store_ps(p + 8, high);
      }
    }
#pragma GCC unroll 8
    for (int s = 0; s < kWrite2; ++s) {
      auto* const p =
          reinterpret_cast<float*>(at(kRead4 + kRead2 + kWrite4 - kInPlace + s) + 2 * i);
      if (kNonTemporal) {
        _mm256_stream_ps(p, low);
      } else {
        _mm256_store_ps(p, low);
      }
    }
    if (kWrite4 + kWrite2 == 0) {  // A pure read must depend on what it read.
      total = _mm256_xor_ps(low, high);
    }
  }
  _mm_sfence();
  return _mm256_cvtss_f32(total);
}

template <int kRead4, int kRead2, int kWrite4, int kWrite2, int kInPlace>
bool Try(const StreamMix& mix, const ProbeStreams& streams, bool non_temporal, int64_t begin,
         int64_t end, float* result) {
  if (mix.read4 != kRead4 || mix.read2 != kRead2 || mix.write4 != kWrite4 ||
      mix.write2 != kWrite2 || mix.in_place != kInPlace) {
    return false;
  }
  *result = non_temporal
                ? Run<kRead4, kRead2, kWrite4, kWrite2, kInPlace, true>(streams, begin, end)
                : Run<kRead4, kRead2, kWrite4, kWrite2, kInPlace, false>(streams, begin, end);
  return true;
}

}  // namespace

float Probe(const StreamMix& mix, const ProbeStreams& streams, bool non_temporal, int64_t begin,
            int64_t end) {
  float result = 0;
  const auto attempt = [&](auto try_mix) {
    return try_mix(mix, streams, non_temporal, begin, end, &result);
  };
  const bool found =
      attempt(Try<4, 0, 3, 0, 3>) || attempt(Try<4, 0, 3, 1, 3>) || attempt(Try<3, 1, 3, 1, 3>) ||
      attempt(Try<1, 0, 0, 0, 0>) || attempt(Try<0, 1, 0, 0, 0>) || attempt(Try<1, 0, 0, 1, 0>) ||
      attempt(Try<0, 1, 1, 0, 0>) || attempt(Try<1, 0, 1, 0, 0>) || attempt(Try<2, 0, 1, 0, 1>) ||
      attempt(Try<0, 1, 0, 1, 0>) || attempt(Try<0, 2, 0, 1, 0>) || attempt(Try<0, 2, 0, 2, 0>) ||
      attempt(Try<0, 3, 0, 1, 0>) || attempt(Try<0, 3, 0, 2, 0>) || attempt(Try<2, 0, 1, 0, 0>) ||
      attempt(Try<2, 0, 2, 0, 0>) || attempt(Try<3, 0, 1, 0, 0>) || attempt(Try<3, 0, 2, 0, 0>);
  DT_CHECK(found) << " add the mix to Probe";
  return result;
}

}  // namespace dtrain::bench
