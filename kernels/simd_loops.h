// The loops of SimdTable, written once on F32x16. Each variant_*.cc includes its simd_*.h with
// DT_SIMD naming its namespace, then this file. A family too large for this file has its own,
// FAMILY_simd_loops.h, and its own table within SimdTable.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/adagrad_math.h"
#include "kernels/adamw_math.h"
#include "kernels/cross_entropy_simd_loops.h"
#include "kernels/embedding_simd_loops.h"
#include "kernels/fp8_simd_loops.h"
#include "kernels/grad_norm.h"
#include "kernels/int8_blocks_simd_loops.h"
#include "kernels/lamb_math.h"
#include "kernels/lion_math.h"
#include "kernels/muon_math.h"
#include "kernels/random_simd_loops.h"
#include "kernels/sgd_math.h"
#include "kernels/simd_core.h"
#include "kernels/simd_table.h"
#include "kernels/swiglu_math.h"

namespace dtrain::kernels::DT_SIMD {
namespace {

// ---- AdamW ----

template <bool kCopyOut, class G, class S>
void AdamWLoop(int64_t n, float* p, const G* g, S* m, S* v, BFloat16* out,
               const AdamWStepScalars& scalars, Write write_out) {
  const AdamWStepScalars local = scalars;  // So that no store could change it.
  EachSixteen(n, out, write_out, [&](auto io, int64_t i) {
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
  const Scalars local = scalars;  // So that no store could change it.
  EachSixteen(n, out, write_out, [&](auto io, int64_t i) {
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

template <class T>
double BlockSquareSum(const T* x, int64_t n) {
  F64x16 even;  // Two sets of lanes hide the latency of the addition.
  F64x16 odd;
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
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

// ---- RMSNorm ----

template <class T>
void RmsNormForward(const RmsNormForwardArgs<T>& args, int64_t begin, int64_t end, Write write) {
  const int64_t n = args.hidden;
  for (int64_t row = begin; row < end; ++row) {
    const T* h = args.x + row * n;
    float squares;
    if (args.residual != nullptr) {
      const T* const residual = args.residual + row * n;
      T* const sum = args.sum + row * n;
      squares = SumProducts(n, [&](auto io, int64_t i) {
        io.Write(sum + i, io.Read(h + i) + io.Read(residual + i));
        const F32x16 rounded = io.Read(sum + i);  // The backward sees h as it was stored.
        return Pair{rounded, rounded};
      });
      h = sum;
    } else {
      squares = SumProducts(n, [&](auto io, int64_t i) {
        const F32x16 x = io.Read(h + i);
        return Pair{x, x};
      });
    }
    const float rstd = 1.0F / __builtin_sqrtf(squares / static_cast<float>(n) + args.eps);
    args.rstd[row] = rstd;
    T* const y = args.y + row * n;
    const F32x16 factor = Set(rstd);
    EachSixteen(n, y, write, [&](auto io, int64_t i) {
      io.WriteOut(y + i, io.Read(h + i) * factor * io.Read(args.weight + i));
    });
  }
}

// With u = dy * weight and r = rstd:  dh = r u - h r^3 mean(u h) + dsum;  dweight += dy h r.
template <class T>
void RmsNormBackward(const RmsNormBackwardArgs<T>& args, int64_t begin, int64_t end, float* partial,
                     Write write) {
  const int64_t n = args.hidden;
  __builtin_memset(partial, 0, static_cast<uint64_t>(n) * sizeof(float));
  for (int64_t row = begin; row < end; ++row) {
    const T* const h = args.h + row * n;
    const T* const dy = args.dy + row * n;
    T* const dh = args.dh + row * n;
    const float rstd = args.rstd[row];
    const float dot = SumProducts(n, [&](auto io, int64_t i) {
      return Pair{io.Read(dy + i) * io.Read(args.weight + i), io.Read(h + i)};
    });
    const F32x16 along_u = Set(rstd);
    const F32x16 along_h = Set(-(dot / static_cast<float>(n) * rstd * rstd * rstd));
    const auto body = [&](auto io, int64_t i, auto add_dsum) {
      const F32x16 d = io.Read(dy + i);
      const F32x16 x = io.Read(h + i);
      F32x16 gradient = Fma(x, along_h, d * io.Read(args.weight + i) * along_u);
      if constexpr (decltype(add_dsum)::value) {
        gradient = gradient + io.Read(args.dsum + row * n + i);
      }
      io.Write(partial + i, Fma(d, x * along_u, io.Read(partial + i)));
      io.WriteOut(dh + i, gradient);
    };
    if (args.dsum != nullptr) {
      EachSixteen(n, dh, write, [&](auto io, int64_t i) { body(io, i, std::true_type{}); });
    } else {
      EachSixteen(n, dh, write, [&](auto io, int64_t i) { body(io, i, std::false_type{}); });
    }
  }
}

// ---- SwiGLU ----

template <class T>
void SwiGluForward(const SwiGluForwardArgs<T>& args, Write write) {
  EachSixteen(args.count, args.out, write, [&](auto io, int64_t i) {
    io.WriteOut(args.out + i, SwiGluElement(io.Read(args.gate + i), io.Read(args.up + i), kSet));
  });
}

template <class T>
void SwiGluBackward(const SwiGluBackwardArgs<T>& args, Write write) {
  // Streaming needs both results aligned alike; otherwise only cached stores are safe.
  const bool alike =
      (reinterpret_cast<uint64_t>(args.dgate) - reinterpret_cast<uint64_t>(args.dup)) %
          (16 * sizeof(T)) ==
      0;
  EachSixteen(args.count, args.dgate, alike ? write : Write::kCached, [&](auto io, int64_t i) {
    const SwiGluGradient<F32x16> gradient = SwiGluElementBackward(
        io.Read(args.gate + i), io.Read(args.up + i), io.Read(args.dout + i), kSet);
    io.WriteOut(args.dgate + i, gradient.gate);
    io.WriteOut(args.dup + i, gradient.up);
  });
}

constexpr SimdTable MakeTable(SimdLevel level) {
  using B = BFloat16;
  using H = Float16;
  return SimdTable{
      .level = level,
      .adamw_f32 = AdamW<float, float>,
      .adamw_bf16 = AdamW<B, float>,
      .adamw_bf16_state = AdamW<float, B>,
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
      .rmsnorm_forward_f32 = RmsNormForward<float>,
      .rmsnorm_forward_bf16 = RmsNormForward<B>,
      .rmsnorm_backward_f32 = RmsNormBackward<float>,
      .rmsnorm_backward_bf16 = RmsNormBackward<B>,
      .swiglu_forward_f32 = SwiGluForward<float>,
      .swiglu_forward_bf16 = SwiGluForward<B>,
      .swiglu_backward_f32 = SwiGluBackward<float>,
      .swiglu_backward_bf16 = SwiGluBackward<B>,
      .cross_entropy = kCrossEntropyLoops,
      .int8_blocks = kInt8BlockLoops,
      .embedding = kEmbeddingLoops,
      .random = kRandomLoops,
      .fp8 = kFp8Loops,
  };
}

}  // namespace
}  // namespace dtrain::kernels::DT_SIMD
