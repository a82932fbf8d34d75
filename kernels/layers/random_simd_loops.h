// Loops that draw random bits, on U32x16; a part of simd_loops.h.
#pragma once

#include <cstdint>

#include "kernels/layers/philox.h"
#include "kernels/optimizer/adamw_math.h"
#include "kernels/optimizer/stochastic_math.h"
#include "kernels/simd/simd_core.h"

namespace dtrain::kernels::DT_SIMD {
namespace {

constexpr auto kSetApart = [](uint32_t x) { return Apart(SetWord(x)); };

inline PhiloxWords<U32x16> Together(const PhiloxWords<U32Apart>& words) {
  return {{Together(words.word[0]), Together(words.word[1]), Together(words.word[2]),
           Together(words.word[3])}};
}

// The four words of a run of sixteen counters.
inline PhiloxWords<U32x16> WordsOfRun(const PhiloxStream& stream, int64_t run) {
  return Together(PhiloxRun(stream, run, Apart(LaneNumbers()), kSetApart));
}

// Two runs at once: the rounds of one are a chain that leaves half of a core idle.
struct TwoApart {
  U32Apart a, b;
};
constexpr auto kSetTwo = [](uint32_t x) { return TwoApart{kSetApart(x), kSetApart(x)}; };
inline TwoApart operator+(const TwoApart& x, const TwoApart& y) { return {x.a + y.a, x.b + y.b}; }
inline TwoApart Xor(const TwoApart& x, const TwoApart& y, const TwoApart& z) {
  return {Xor(x.a, y.a, z.a), Xor(x.b, y.b, z.b)};
}
inline void Multiply(const TwoApart& x, uint32_t y, TwoApart& high, TwoApart& low) {
  Multiply(x.a, y, high.a, low.a);
  Multiply(x.b, y, high.b, low.b);
}

// The words of runs `run` and run + 1. REQUIRES: run is even (no carry into the second word).
inline void WordsOfTwoRuns(const PhiloxStream& stream, int64_t run, PhiloxWords<U32x16> (&out)[2]) {
  const U32x16 lanes = LaneNumbers();
  const TwoApart numbers = {Apart(lanes), Apart(lanes + SetWord(16))};
  const PhiloxWords<TwoApart> words = PhiloxRun(stream, run, numbers, kSetTwo);
  const auto& w = words.word;
  out[0] = Together(PhiloxWords<U32Apart>{{w[0].a, w[1].a, w[2].a, w[3].a}});
  out[1] = Together(PhiloxWords<U32Apart>{{w[0].b, w[1].b, w[2].b, w[3].b}});
}

// 32 elements whose bits are the halves of `words`.
template <bool kStream, class T>
void DropOut(const T* x, T* out, U32x16 words, const DropoutRule& rule) {
  const U32x16 limit = SetWord(rule.limit);
  const auto kept = [&](F32x16 value, U32x16 bits) {
    return FromBits(SelectAtLeast(bits, limit, Bits(value * Set(rule.scale)), SetWord(0)));
  };
  F32x16 even, odd;
  LoadPairs(x, even, odd);
  even = kept(even, ShiftLeft<16>(words));
  odd = kept(odd, words);  // The low half below it decides nothing.
  if constexpr (kStream) {
    StreamPairs(out, even, odd);
  } else {
    StorePairs(out, even, odd);
  }
}

template <class T>
void DropOutPart(int64_t count, const T* x, T* out, U32x16 words, const DropoutRule& rule) {
  T copy[32] = {};
  __builtin_memcpy(copy, x, static_cast<uint64_t>(count) * sizeof(T));
  DropOut<false>(copy, copy, words, rule);
  __builtin_memcpy(out, copy, static_cast<uint64_t>(count) * sizeof(T));
}

// A run of 128, of which the last may be cut short.
template <bool kStream, class T>
void DropoutRun(const DropoutArgs<T>& args, const DropoutRule& rule, int64_t run,
                const PhiloxWords<U32x16>& words) {
  const int64_t first = run * kPhiloxHalfRun;
  const T* const x = args.x + first;
  T* const out = args.out + first;
  const int64_t left = args.count - first;
  if (left >= kPhiloxHalfRun) {
    for (int k = 0; k < 4; ++k) {
      DropOut<kStream>(x + 32 * k, out + 32 * k, words.word[k], rule);
    }
    return;
  }
  for (int k = 0; 32 * k < left; ++k) {
    const int64_t count = left - 32 * k < 32 ? left - 32 * k : 32;
    DropOutPart(count, x + 32 * k, out + 32 * k, words.word[k], rule);
  }
}

template <bool kStream, class T>
DT_FLATTEN void DropoutRuns(const DropoutArgs<T>& args, const DropoutRule& rule, int64_t begin,
                            int64_t end) {
  const DropoutArgs<T> local = args;  // A local copy, which no store can change.
  const DropoutRule local_rule = rule;
  int64_t run = begin;
  if (run % 2 != 0 && run < end) {
    DropoutRun<kStream>(local, local_rule, run, WordsOfRun(local.stream, run));
    ++run;
  }
  for (; run + 2 <= end; run += 2) {
    PhiloxWords<U32x16> words[2];
    WordsOfTwoRuns(local.stream, run, words);
    DropoutRun<kStream>(local, local_rule, run, words[0]);
    DropoutRun<kStream>(local, local_rule, run + 1, words[1]);
  }
  if (run < end) {
    DropoutRun<kStream>(local, local_rule, run, WordsOfRun(local.stream, run));
  }
}

// Runs [begin, end) of 128 elements.
template <class T>
void Dropout(const DropoutArgs<T>& args, const DropoutRule& rule, int64_t begin, int64_t end,
             Write write) {
  if (write == Write::kStream) {
    DropoutRuns<true>(args, rule, begin, end);
    StreamFence();
  } else {
    DropoutRuns<false>(args, rule, begin, end);
  }
}

// ---- AdamW with moments rounded stochastically ----

// body(io, k, i) for the sixteens of `n` elements at `first`; k counts them.
template <class Body>
DT_FLATTEN void EachOfRun(int64_t first, int64_t n, Body body) {
  int k = 0;
  for (; 16 * (k + 1) <= n; ++k) {
    body(Whole{}, k, first + 16 * k);
  }
  if (16 * k < n) {
    body(Part{n - 16 * k}, k, first + 16 * k);
  }
}

template <bool kCopyOut>
void AdamWStochasticRuns(int64_t n, int64_t first, float* p, const float* g, BFloat16* m,
                         BFloat16* v, BFloat16* out, const AdamWStepScalars& scalars,
                         const PhiloxStream& stream) {
  const AdamWStepScalars local = scalars;  // A local copy, which no store can change.
  const U32x16 low = SetWord(0xffffU);
  uint32_t words[kPhiloxRun + 16];  // A range may begin anywhere in a run.
  for (int64_t begin = 0; begin < n;) {
    const int64_t run = (first + begin) / kPhiloxRun;
    const int64_t in_run = first + begin - run * kPhiloxRun;
    const PhiloxWords<U32x16> drawn = WordsOfRun(stream, run);
    for (int k = 0; k < 4; ++k) {
      Store(words + 16 * k, drawn.word[k]);
    }
    const int64_t left = n - begin;
    const int64_t count = kPhiloxRun - in_run < left ? kPhiloxRun - in_run : left;
    const uint32_t* const mine = words + in_run;
    EachOfRun(begin, count, [&](auto io, int k, int64_t i) {
      const U32x16 random = Load(mine + 16 * k);
      const AdamWState<F32x16> state{io.Read(p + i), io.Read(m + i), io.Read(v + i)};
      const AdamWState<F32x16> next = AdamWElement(state, io.Read(g + i), local, kSet);
      io.Write(p + i, next.p);
      io.Write(m + i, RoundStochastic(next.m, random & low, kSetWord));
      io.Write(v + i, RoundStochastic(next.v, ShiftRight<16>(random), kSetWord));
      if constexpr (kCopyOut) {
        io.Write(out + i, next.p);
      }
    });
    begin += count;
  }
}

inline void AdamWStochastic(int64_t n, int64_t first, float* p, const float* g, BFloat16* m,
                            BFloat16* v, BFloat16* out, const AdamWStepScalars& scalars,
                            const PhiloxStream& stream) {
  if (out != nullptr) {
    AdamWStochasticRuns<true>(n, first, p, g, m, v, out, scalars, stream);
  } else {
    AdamWStochasticRuns<false>(n, first, p, g, m, v, out, scalars, stream);
  }
}

constexpr RandomLoops kRandomLoops = {
    .dropout_f32 = Dropout<float>,
    .dropout_bf16 = Dropout<BFloat16>,
    .adamw = AdamWStochastic,
};

}  // namespace
}  // namespace dtrain::kernels::DT_SIMD
