// The loops of adamw_rounded.h, included by simd_loops.h with DT_SIMD naming the variant.
#pragma once

#include <cstdint>

#include "kernels/optimizer/adamw_math.h"
#include "kernels/optimizer/adamw_rounded.h"
#include "kernels/simd/simd_core.h"
#include "kernels/simd/simd_table.h"

namespace dtrain::kernels::DT_SIMD {
namespace {

// Rounds as RoundBf16 does and gives the value in fp32; a NaN becomes quiet.
inline F32x16 RoundedToBf16(F32x16 x) {
  const U32x16 bits = Bits(x);
  const U32x16 odd = ShiftRight<16>(bits) & SetWord(1);
  const U32x16 rounded = bits + odd + SetWord(0x7fff);
  const U32x16 chosen = SelectAtLeast(bits & SetWord(0x7fffffff), SetWord(0x7f800001),
                                      bits | SetWord(0x400000), rounded);
  return FromBits(chosen & SetWord(0xffff0000));
}

// Adds up the words of weights, sixteen of a layout at a time.
class WordSum {
 public:
  void Add(Whole /*io*/, F32x16 weights, U32x16 places) {
    words_ = words_ + Words(weights, places);
  }
  void Add(Part io, F32x16 weights, U32x16 places) {  // Where no element is, nothing is added.
    uint32_t words[16];
    Store(words, Together(Words(weights, places)));
    for (int64_t i = 0; i < io.count; ++i) {
      rest_ += words[i];
    }
  }
  uint32_t Total() const {
    uint32_t words[16];
    Store(words, Together(words_));
    uint32_t total = rest_;
    for (const uint32_t word : words) {
      total += word;
    }
    return total;
  }

 private:
  static U32Apart Words(F32x16 weights, U32x16 places) {
    U32Apart high, low;
    Multiply(Apart(Bits(weights) + places), kWeightFactor, high, low);
    return Xor(high, low, Apart(SetWord(0)));
  }

  U32Apart words_ = Apart(SetWord(0));
  uint32_t rest_ = 0;
};

inline U32x16 PlaceFactors() {
  U32x16 high, low;
  Multiply(LaneNumbers(), kWeightPlaceFactor, high, low);
  return low;
}

template <bool kKeep, bool kCopyOut>
WeightSums AdamWRoundedLoop(const AdamWRoundedArgs& args, const AdamWStepScalars& scalars) {
  const AdamWRoundedArgs a = args;  // Local copies, which no store can change.
  const AdamWStepScalars local = scalars;
  const U32x16 lanes = PlaceFactors();
  WordSum before;
  WordSum after;
  const Write write = kKeep && a.kept.past_caches ? Write::kStream : Write::kCached;
  EachSixteen(a.n, a.kept.to, write, [&](auto io, int64_t i) {
    PrefetchAhead(io, a.p + i);
    PrefetchAhead(io, a.g + i);
    PrefetchAhead(io, a.m + i);
    PrefetchAhead(io, a.v + i);
    const F32x16 gradient = RoundedToBf16(io.Read(a.g + i));
    const AdamWState<F32x16> state{io.Read(a.p + i), io.Read(a.m + i), io.Read(a.v + i)};
    const AdamWState<F32x16> next = AdamWElement(state, gradient, local, kSet);
    io.Write(a.p + i, next.p);
    io.Write(a.m + i, next.m);
    io.Write(a.v + i, next.v);
    if constexpr (kKeep) {
      const U32x16 places =
          lanes + SetWord(static_cast<uint32_t>(a.first + i) * kWeightPlaceFactor);
      before.Add(io, state.p, places);
      after.Add(io, next.p, places);
      io.WriteOut(a.kept.to + i, gradient);
    }
    if constexpr (kCopyOut) {
      io.Write(a.p_bf16 + i, next.p);
    }
  });
  return {before.Total(), after.Total()};
}

WeightSums AdamWRounded(const AdamWRoundedArgs& args, const AdamWStepScalars& scalars) {
  if (args.kept.to == nullptr) {
    return args.p_bf16 == nullptr ? AdamWRoundedLoop<false, false>(args, scalars)
                                  : AdamWRoundedLoop<false, true>(args, scalars);
  }
  return args.p_bf16 == nullptr ? AdamWRoundedLoop<true, false>(args, scalars)
                                : AdamWRoundedLoop<true, true>(args, scalars);
}

}  // namespace
}  // namespace dtrain::kernels::DT_SIMD
