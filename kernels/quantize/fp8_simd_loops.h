// FP8 casts on F32x16 and U32x16; a part of simd_loops.h.
#pragma once

#include <cstdint>

#include "kernels/quantize/fp8_math.h"
#include "kernels/simd/simd_core.h"

namespace dtrain::kernels::DT_SIMD {
namespace {

inline U32x16 ReadCodes(Whole /*io*/, const uint8_t* p) { return Load(p); }
inline U32x16 ReadCodes(Part io, const uint8_t* p) {
  uint8_t copy[16] = {};
  __builtin_memcpy(copy, p, static_cast<uint64_t>(io.count));
  return Load(copy);
}
inline void WriteCodes(Whole /*io*/, uint8_t* p, U32x16 x) { Store(p, x); }
inline void WriteCodes(Part io, uint8_t* p, U32x16 x) {
  uint8_t copy[16];
  Store(copy, x);
  __builtin_memcpy(p, copy, static_cast<uint64_t>(io.count));
}

// Returns the largest magnitude's bits: as integers they are ordered as the values, NaN last.
template <Fp8Format kFormat, class T>
uint32_t CastToFp8(int64_t n, const void* src, uint8_t* dst, float scale) {
  const auto* const from = static_cast<const T*>(src);
  const F32x16 factor = Set(scale);
  U32x16 most = SetWord(0);
  EachSixteen(n, [&](auto io, int64_t i) {
    const F32x16 x = io.Read(from + i);
    most = Max(most, Bits(x) & SetWord(0x7fffffffU));
    WriteCodes(io, dst + i, EncodeFp8<kFormat>(x * factor, kSetWord));
  });
  return LargestWord(most);
}

template <Fp8Format kFormat, class T>
void CastFromFp8(int64_t n, const uint8_t* src, void* dst, float scale, Write write) {
  auto* const to = static_cast<T*>(dst);
  const F32x16 factor = Set(scale);
  EachSixteen(n, to, write, [&](auto io, int64_t i) {
    io.WriteOut(to + i, DecodeFp8<kFormat>(ReadCodes(io, src + i), kSetWord, kSet) * factor);
  });
}

template <class T>
uint32_t LargestMagnitude(int64_t n, const void* src) {
  const auto* const from = static_cast<const T*>(src);
  U32x16 even = SetWord(0);
  U32x16 odd = SetWord(0);
  const U32x16 magnitude = SetWord(0x7fffffffU);
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    even = Max(even, Bits(Load(from + i)) & magnitude);
    odd = Max(odd, Bits(Load(from + i + 16)) & magnitude);
  }
  EachSixteen(n - i, [&](auto io, int64_t at) {
    even = Max(even, Bits(io.Read(from + i + at)) & magnitude);
  });
  return LargestWord(Max(even, odd));
}

constexpr Fp8Loops kFp8Loops = {
    .to = {{CastToFp8<Fp8Format::kE4m3, float>, CastToFp8<Fp8Format::kE4m3, BFloat16>},
           {CastToFp8<Fp8Format::kE5m2, float>, CastToFp8<Fp8Format::kE5m2, BFloat16>}},
    .from = {{CastFromFp8<Fp8Format::kE4m3, float>, CastFromFp8<Fp8Format::kE4m3, BFloat16>},
             {CastFromFp8<Fp8Format::kE5m2, float>, CastFromFp8<Fp8Format::kE5m2, BFloat16>}},
    .amax = {LargestMagnitude<float>, LargestMagnitude<BFloat16>},
};

}  // namespace
}  // namespace dtrain::kernels::DT_SIMD
