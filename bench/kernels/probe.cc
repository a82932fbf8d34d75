#include "bench/kernels/probe.h"

#include <immintrin.h>

#include "base/check.h"

namespace dtrain::bench {
namespace {

// The streams' counts are constants so that the loop over them is unrolled. 32 elements a turn, so
// that a stream of bytes is a register wide too.
template <StreamMix kMix, bool kNonTemporal>
__attribute__((target("avx2"))) float Run(const ProbeStreams& streams, int64_t begin, int64_t end) {
  constexpr int kReads = kMix.read4 + kMix.read2 + kMix.read1;
  constexpr int kWrites = kMix.write4 + kMix.write2 + kMix.write1;
  const auto at = [&](int stream, int64_t byte) {
    return reinterpret_cast<float*>(streams.base + stream * streams.stride + byte);
  };
  __m256 total[4] = {};  // Sums of the streams that are only read, four independent chains.
  for (int64_t i = begin; i < end; i += 32) {
    __m256 part[4] = {total[0], total[1], total[2], total[3]};
#pragma GCC unroll 8
    for (int s = 0; s < kReads; ++s) {
      const int width = s < kMix.read4 ? 4 : s < kMix.read4 + kMix.read2 ? 2 : 1;
#pragma GCC unroll 4
      for (int k = 0; k < width; ++k) {
        part[k] = _mm256_xor_ps(part[k], _mm256_load_ps(at(s, width * i + 32 * k)));
      }
    }
    // A pure read must depend on all that it read. Lines of zeros would be written faster than any
    // that hold something.
    constexpr int kWidest = kMix.read4 > 0 ? 4 : kMix.read2 > 0 ? 2 : 1;
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      if (kWrites == 0) {
        total[k] = part[k];
      } else if (k >= kWidest) {
        part[k] = part[k % kWidest];
      }
    }
#pragma GCC unroll 8
    for (int s = 0; s < kWrites; ++s) {
      const int width = s < kMix.write4 ? 4 : s < kMix.write4 + kMix.write2 ? 2 : 1;
      const int second = s - kMix.write4;  // Among those of two bytes.
      const bool in_place = width == 4 ? s < kMix.in_place : width == 2 && second < kMix.in_place2;
      const int fresh = width == 4 ? s - kMix.in_place : s - kMix.in_place - kMix.in_place2;
      const int stream = !in_place ? kReads + fresh : width == 4 ? s : kMix.read4 + second;
#pragma GCC unroll 4
      for (int k = 0; k < width; ++k) {
        float* const p = at(stream, width * i + 32 * k);
        if (kNonTemporal && !in_place) {
          _mm256_stream_ps(p, part[k]);
        } else {
          _mm256_store_ps(p, part[k]);
        }
      }
    }
  }
  _mm_sfence();
  return _mm256_cvtss_f32(
      _mm256_xor_ps(_mm256_xor_ps(total[0], total[1]), _mm256_xor_ps(total[2], total[3])));
}

template <StreamMix kMix>
bool Try(const StreamMix& mix, const ProbeStreams& streams, bool non_temporal, int64_t begin,
         int64_t end, float* result) {
  if (mix != kMix) {
    return false;
  }
  *result =
      non_temporal ? Run<kMix, true>(streams, begin, end) : Run<kMix, false>(streams, begin, end);
  return true;
}

// The mixes of the cases.
template <StreamMix... kMixes>
struct List {};
using Known =
    List<StreamMix{.read4 = 4, .write4 = 3, .in_place = 3},
         StreamMix{.read4 = 4, .write4 = 3, .write2 = 1, .in_place = 3},
         StreamMix{.read4 = 3, .read2 = 1, .write4 = 3, .write2 = 1, .in_place = 3},
         StreamMix{.read4 = 2, .read2 = 2, .write4 = 1, .write2 = 2, .in_place = 1, .in_place2 = 2},
         StreamMix{.read4 = 2, .write4 = 1, .in_place = 1}, StreamMix{.read4 = 1},
         StreamMix{.read2 = 1}, StreamMix{.read4 = 1, .write2 = 1},
         StreamMix{.read2 = 1, .write4 = 1}, StreamMix{.read4 = 1, .write4 = 1},
         StreamMix{.read2 = 1, .write2 = 1}, StreamMix{.read2 = 2, .write2 = 1},
         StreamMix{.read2 = 2, .write2 = 2}, StreamMix{.read2 = 3, .write2 = 1},
         StreamMix{.read2 = 3, .write2 = 2}, StreamMix{.read4 = 2, .write4 = 1},
         StreamMix{.read4 = 2, .write4 = 2}, StreamMix{.read4 = 3, .write4 = 1},
         StreamMix{.read4 = 3, .write4 = 2}, StreamMix{.read4 = 1, .write1 = 1},
         StreamMix{.read2 = 1, .write1 = 1}, StreamMix{.write4 = 1, .read1 = 1},
         StreamMix{.write2 = 1, .read1 = 1}>;

}  // namespace

float Probe(const StreamMix& mix, const ProbeStreams& streams, bool non_temporal, int64_t begin,
            int64_t end) {
  float result = 0;
  const bool found = [&]<StreamMix... kMixes>(List<kMixes...>) {
    return (Try<kMixes>(mix, streams, non_temporal, begin, end, &result) || ...);
  }
  (Known{});
  DT_CHECK(found) << " add the mix to Probe";
  return result;
}

}  // namespace dtrain::bench
