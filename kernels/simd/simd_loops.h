// The loops of SimdTable, written once on F32x16. Each variant_*.cc includes its simd_*.h with
// DT_SIMD naming its namespace, then this file. A family too large for this file has its own,
// FAMILY_simd_loops.h, and its own table within SimdTable.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/layers/activation_simd_loops.h"
#include "kernels/layers/cross_entropy_simd_loops.h"
#include "kernels/layers/embedding_simd_loops.h"
#include "kernels/layers/norm_simd_loops.h"
#include "kernels/layers/random_simd_loops.h"
#include "kernels/layers/rope_simd_loops.h"
#include "kernels/optimizer/adagrad_math.h"
#include "kernels/optimizer/adamw_math.h"
#include "kernels/optimizer/adamw_rounded_simd_loops.h"
#include "kernels/optimizer/grad_norm.h"
#include "kernels/optimizer/lamb_math.h"
#include "kernels/optimizer/lion_math.h"
#include "kernels/optimizer/muon_math.h"
#include "kernels/optimizer/sgd_math.h"
#include "kernels/quantize/fp8_simd_loops.h"
#include "kernels/quantize/int8_blocks_simd_loops.h"
#include "kernels/simd/simd_core.h"
#include "kernels/simd/simd_sums.h"
#include "kernels/simd/simd_table.h"

namespace dtrain::kernels::DT_SIMD {
namespace {

// ---- AdamW ----

template <bool kCopyOut, class G, class S>
void AdamWLoop(int64_t n, float* p, const G* g, S* m, S* v, BFloat16* out,
               const AdamWStepScalars& scalars, Write write_out) {
  const AdamWStepScalars local = scalars;  // A local copy, which no store can change.
  EachSixteen(n, out, write_out, [&](auto io, int64_t i) {
    PrefetchAhead(io, p + i);
    PrefetchAhead(io, g + i);
    PrefetchAhead(io, m + i);
    PrefetchAhead(io, v + i);
    const AdamWState<F32x16> state{io.Read(p + i), io.Read(m + i), io.Read(v + i)};
    const AdamWState<F32x16> next = AdamWElement(state, io.Read(g + i), local, kSet);
    io.Write(p + i, next.p);
    io.Write(m + i, next.m);
    io.Write(v + i, next.v);
    if constexpr (kCopyOut) {
      io.WriteOut(out + i, next.p);
    }
  });
}

template <class G, class S>
void AdamW(int64_t n, float* p, const G* g, S* m, S* v, BFloat16* out,
           const AdamWStepScalars& scalars, Write write_out) {
  if (out != nullptr) {
    AdamWLoop<true>(n, p, g, m, v, out, scalars, write_out);
  } else {
    AdamWLoop<false>(n, p, g, m, v, out, scalars, Write::kCached);
  }
}

// ---- Optimizers with one state ----

template <bool kCopyOut, class S, class Rule, class Scalars>
void OneStateRuns(int64_t n, float* p, const float* g, S* s, BFloat16* out, const Scalars& scalars,
                  Write write_out) {
  const Scalars local = scalars;  // A local copy, which no store can change.
  EachSixteen(n, out, write_out, [&](auto io, int64_t i) {
    PrefetchAhead(io, p + i);
    PrefetchAhead(io, g + i);
    PrefetchAhead(io, s + i);
    const OneState<F32x16> next = Rule::Element(OneState<F32x16>{io.Read(p + i), io.Read(s + i)},
                                                io.Read(g + i), local, kSet);
    io.Write(p + i, next.p);
    io.Write(s + i, next.s);
    if constexpr (kCopyOut) {
      io.WriteOut(out + i, next.p);
    }
  });
}

template <class S, class Rule, class Scalars>
void OneStateUpdate(int64_t n, float* p, const float* g, void* state, BFloat16* out,
                    const Scalars& scalars, Write write_out) {
  auto* const s = static_cast<S*>(state);
  if (out != nullptr) {
    OneStateRuns<true, S, Rule>(n, p, g, s, out, scalars, write_out);
  } else {
    OneStateRuns<false, S, Rule>(n, p, g, s, out, scalars, Write::kCached);
  }
}

// A copy [n] after the fact: what these loops are bound by does not show in a second pass over the
// cache, and it keeps the number of their forms small.
inline void CopyOut(int64_t i, const float* p, BFloat16* out, int64_t count) {
  if (out == nullptr) {
    return;
  }
  if (count == 16) {
    Store(out + i, Load(p + i));
  } else {
    Part{count}.Write(out + i, Part{count}.Read(p + i));
  }
}

// Runs body(io, i, count) by sixteens, then copies p [n] out.
template <class Body>
DT_FLATTEN void EachThenCopyOut(int64_t n, const float* p, BFloat16* out, Body body) {
  EachSixteen(n, [&](auto io, int64_t i) {
    body(io, i);
    CopyOut(i, p, out, n - i < 16 ? n - i : 16);
  });
}

template <class S>
void Sgd(int64_t n, float* p, const float* g, void* state, BFloat16* out,
         const SgdStepScalars& scalars, Write write_out) {
  if (state != nullptr) {
    OneStateUpdate<S, SgdRule>(n, p, g, state, out, scalars, write_out);
    return;
  }
  const SgdStepScalars local = scalars;
  EachThenCopyOut(n, p, out, [&](auto io, int64_t i) {
    io.Write(p + i, PlainSgdElement(io.Read(p + i), io.Read(g + i), local, kSet));
  });
}

// ---- LAMB and Muon ----

inline LambSums LambMomentsBlock(int64_t n, const float* p, const float* g, float* m, float* v,
                                 const LambStepScalars& scalars) {
  const LambStepScalars local = scalars;
  F64x16 weights;
  F64x16 updates;
  EachSixteen(n, [&](auto io, int64_t i) {
    const F32x16 weight = io.Read(p + i);
    const LambMoments<F32x16> next = LambMomentsElement(
        LambMoments<F32x16>{io.Read(m + i), io.Read(v + i)}, io.Read(g + i), local, kSet);
    io.Write(m + i, next.m);
    io.Write(v + i, next.v);
    AddSquares(weights, weight);
    AddSquares(updates, LambUpdate(weight, next, local, kSet));
  });
  return {SumLanes(weights), SumLanes(updates)};
}

inline void LambApply(int64_t n, float* p, const float* m, const float* v, BFloat16* out,
                      const LambStepScalars& scalars, float trust_step) {
  const LambStepScalars local = scalars;
  EachThenCopyOut(n, p, out, [&](auto io, int64_t i) {
    const F32x16 weight = io.Read(p + i);
    const LambMoments<F32x16> moments{io.Read(m + i), io.Read(v + i)};
    io.Write(p + i, weight - Set(trust_step) * LambUpdate(weight, moments, local, kSet));
  });
}

inline void MuonDirection(int64_t n, const float* g, float* s, float* direction,
                          const MuonStepScalars& scalars) {
  const MuonStepScalars local = scalars;
  EachSixteen(n, [&](auto io, int64_t i) {
    const OneState<F32x16> next = MuonDirectionElement(io.Read(s + i), io.Read(g + i), local, kSet);
    io.Write(s + i, next.s);
    io.Write(direction + i, next.p);
  });
}

inline void MuonApply(int64_t n, float* p, const float* direction, BFloat16* out, float step,
                      float decay) {
  EachThenCopyOut(n, p, out, [&](auto io, int64_t i) {
    io.Write(p + i, MuonApplyElement(io.Read(p + i), io.Read(direction + i), step, decay, kSet));
  });
}

// ---- Gradient norm ----

struct ByThirtyTwo {
  static constexpr uint64_t kElements = 32;
};

template <class T>
double BlockSquareSum(const T* x, int64_t n) {
  F64x16 even;  // Two sets of lanes hide the latency of the addition.
  F64x16 odd;
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    // Twice as far as other loops, into a cache further out: a page's worth.
    PrefetchFarFor(ByThirtyTwo{}, x + i + 2 * kAheadBytes / static_cast<int64_t>(sizeof(T)));
    AddSquares(even, Load(x + i));
    AddSquares(odd, Load(x + i + 16));
  }
  if (i + 16 <= n) {
    AddSquares(even, Load(x + i));
    i += 16;
    if (i < n) {
      AddSquares(odd, Part{n - i}.Read(x + i));
    }
  } else if (i < n) {
    AddSquares(even, Part{n - i}.Read(x + i));
  }
  double lanes[32];
  StoreLanes(lanes, even);
  StoreLanes(lanes + 16, odd);
  for (int width = 16; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) {
      lanes[lane] += lanes[lane + width];
    }
  }
  return lanes[0];
}

// ---- Flat copies ----

template <class From, class To>
void ScaleLoop(int64_t n, const void* src, void* dst, float scale, Write write) {
  const auto* const from = static_cast<const From*>(src);
  auto* const to = static_cast<To*>(dst);
  const F32x16 factor = Set(scale);
  EachSixteen(n, to, write,
              [&](auto io, int64_t i) { io.WriteOut(to + i, io.Read(from + i) * factor); });
}

template <class From, class To>
void AccumulateLoop(int64_t n, const void* src, void* dst, float /*scale*/, Write /*write*/) {
  const auto* const from = static_cast<const From*>(src);
  auto* const to = static_cast<To*>(dst);
  EachSixteen(n,
              [&](auto io, int64_t i) { io.Write(to + i, io.Read(to + i) + io.Read(from + i)); });
}

template <class To>
void FillLoop(int64_t n, float value, void* dst, Write write) {
  auto* const to = static_cast<To*>(dst);
  const F32x16 filler = Set(value);
  EachSixteen(n, to, write, [&](auto io, int64_t i) { io.WriteOut(to + i, filler); });
}

void CopyPastCaches(int64_t bytes, const void* src, void* dst) {
  CopyBits(bytes, static_cast<const char*>(src), static_cast<char*>(dst), Write::kStream);
  StreamFence();
}

constexpr SimdTable MakeTable(SimdLevel level) {
  using B = BFloat16;
  using H = Float16;
  return SimdTable{
      .level = level,
      .adamw_f32 = AdamW<float, float>,
      .adamw_bf16 = AdamW<B, float>,
      .adamw_bf16_state = AdamW<float, B>,
      .adamw_rounded = AdamWRounded,
      .sgd = {Sgd<float>, Sgd<B>},
      .lion = {OneStateUpdate<float, LionRule>, OneStateUpdate<B, LionRule>},
      .adagrad = {OneStateUpdate<float, AdagradRule>, OneStateUpdate<B, AdagradRule>},
      .lamb_moments = LambMomentsBlock,
      .lamb_apply = LambApply,
      .muon_direction = MuonDirection,
      .muon_apply = MuonApply,
      .square_sum_f32 = BlockSquareSum<float>,
      .square_sum_bf16 = BlockSquareSum<B>,
      .scale = {{ScaleLoop<float, float>, ScaleLoop<float, B>, ScaleLoop<float, H>},
                {ScaleLoop<B, float>, ScaleLoop<B, B>, ScaleLoop<B, H>},
                {ScaleLoop<H, float>, ScaleLoop<H, B>, ScaleLoop<H, H>}},
      .accumulate = {{AccumulateLoop<float, float>, AccumulateLoop<float, B>,
                      AccumulateLoop<float, H>},
                     {AccumulateLoop<B, float>, AccumulateLoop<B, B>, AccumulateLoop<B, H>},
                     {AccumulateLoop<H, float>, AccumulateLoop<H, B>, AccumulateLoop<H, H>}},
      .fill = {FillLoop<float>, FillLoop<B>, FillLoop<H>},
      .copy_past_caches = CopyPastCaches,
      .rms_norm = kRmsNormLoops,
      .layer_norm = kLayerNormLoops,
      .activation_f32 = MakeActivationLoops<float>(),
      .activation_bf16 = MakeActivationLoops<B>(),
      .rope_f32 = Rope<float>,
      .rope_bf16 = Rope<B>,
      .cross_entropy = kCrossEntropyLoops,
      .int8_blocks = kInt8BlockLoops,
      .embedding = kEmbeddingLoops,
      .random = kRandomLoops,
      .fp8 = kFp8Loops,
  };
}

}  // namespace
}  // namespace dtrain::kernels::DT_SIMD
