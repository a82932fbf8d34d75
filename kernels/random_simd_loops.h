// Loops that draw random bits, on U32x16; a part of simd_loops.h.
#pragma once

#include <cstdint>

#include "kernels/adamw_math.h"
#include "kernels/philox.h"
#include "kernels/simd_core.h"
#include "kernels/stochastic_math.h"

namespace dtrain::kernels::DT_SIMD {
namespace {

inline F32x16 DropOut(F32x16 x, U32x16 word, U32x16 threshold, F32x16 scale) {
  return FromBits(SelectAtLeast(word, threshold, Bits(x * scale), SetWord(0)));
}

// body(io, k, i) for the sixteens of a run of `n` elements at `first`; k counts them.
template <class Full, class Body>
DT_FLATTEN void EachOfRun(Full full, int64_t first, int64_t n, Body body) {
  int k = 0;
  for (; 16 * (k + 1) <= n; ++k) {
    body(full, k, first + 16 * k);
  }
  if (16 * k < n) {
    body(Part{n - 16 * k}, k, first + 16 * k);
  }
}

template <class Full, class T>
void DropoutRuns(Full full, const DropoutArgs<T>& args, const DropoutRule& rule, int64_t begin,
                 int64_t end) {
  const U32x16 threshold = SetWord(rule.threshold);
  const F32x16 scale = Set(rule.scale);
  const T* const x = args.x;
  T* const out = args.out;
  for (int64_t run = begin; run < end; ++run) {
    const PhiloxWords<U32x16> words = PhiloxRun(args.stream, run, LaneNumbers(), kSetWord);
    const int64_t first = run * kPhiloxRun;
    const int64_t n = args.count - first < kPhiloxRun ? args.count - first : kPhiloxRun;
    EachOfRun(full, first, n, [&](auto io, int k, int64_t i) {
      io.WriteOut(out + i, DropOut(io.Read(x + i), words.word[k], threshold, scale));
    });
  }
}

// Runs [begin, end) of 64 elements.
template <class T>
void Dropout(const DropoutArgs<T>& args, const DropoutRule& rule, int64_t begin, int64_t end,
             Write write) {
  if (write == Write::kStream) {
    DropoutRuns(WholeStream{}, args, rule, begin, end);
    StreamFence();
  } else {
    DropoutRuns(Whole{}, args, rule, begin, end);
  }
}

// ---- AdamW with moments rounded stochastically ----

template <bool kCopyOut>
void AdamWStochasticRuns(int64_t n, int64_t first, float* p, const float* g, BFloat16* m,
                         BFloat16* v, BFloat16* out, const AdamWStepScalars& scalars,
                         const PhiloxStream& stream) {
  const AdamWStepScalars local = scalars;  // So that no store could change it.
  const U32x16 low = SetWord(0xffffU);
  uint32_t words[kPhiloxRun + 16];  // A range may begin anywhere in a run.
  for (int64_t begin = 0; begin < n;) {
    const int64_t run = (first + begin) / kPhiloxRun;
    const int64_t in_run = first + begin - run * kPhiloxRun;
    const PhiloxWords<U32x16> drawn = PhiloxRun(stream, run, LaneNumbers(), kSetWord);
    for (int k = 0; k < 4; ++k) {
      Store(words + 16 * k, drawn.word[k]);
    }
    const int64_t left = n - begin;
    const int64_t count = kPhiloxRun - in_run < left ? kPhiloxRun - in_run : left;
    const uint32_t* const mine = words + in_run;
    EachOfRun(Whole{}, begin, count, [&](auto io, int k, int64_t i) {
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
