// Activations on F32x16; a part of simd_loops.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/layers/activation_math.h"
#include "kernels/simd/simd_core.h"

namespace dtrain::kernels::DT_SIMD {
namespace {

// Each operand this far ahead: the hardware's own prefetching stops at pages, and a long body keeps
// the loads behind it waiting.
template <class Io, class T, class... More>
void FetchAhead(Io io, const T* p, const More*... more) {
  constexpr int64_t kElements = kAheadBytes / static_cast<int64_t>(sizeof(T));
  PrefetchFarFor(io, p + kElements);
  (PrefetchFarFor(io, more + kElements), ...);
}

// gelu's two polynomials leave no registers for eight chains.
template <Activation kActivation>
using Turn = std::conditional_t<kActivation == Activation::kGelu, ByFew, ByMany>;

template <Activation kActivation, class T>
void ActivationForward(const ActivationForwardArgs<T>& args, Write write) {
  const T* const x = args.x;
  T* const y = args.y;
  Each<Turn<kActivation>>(args.count, y, write, [&](auto io, int64_t i) {
    FetchAhead(io, x + i);
    io.WriteOut(y + i, Activate<kActivation, T>(io.Read(x + i), io.kSetAll).value);
  });
}

template <Activation kActivation, class T>
void ActivationBackward(const ActivationBackwardArgs<T>& args, Write write) {
  const T* const x = args.x;
  const T* const dy = args.dy;
  T* const dx = args.dx;
  Each<Turn<kActivation>>(args.count, dx, write, [&](auto io, int64_t i) {
    FetchAhead(io, x + i, dy + i);
    io.WriteOut(dx + i,
                io.Read(dy + i) * Activate<kActivation, T>(io.Read(x + i), io.kSetAll).slope);
  });
}

template <Activation kActivation, class T>
void GatedForward(const GatedForwardArgs<T>& args, Write write) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const T* const gate = args.gate + row * args.stride;
    const T* const up = args.up + row * args.stride;
    T* const out = args.out + row * args.hidden;
    EachUnfenced<Turn<kActivation>>(args.hidden, out, write, [&](auto io, int64_t i) {
      FetchAhead(io, gate + i, up + i);
      const auto act = Activate<kActivation, T>(io.Read(gate + i), io.kSetAll).value;
      io.WriteOut(out + i, act * io.Read(up + i));
    });
  }
  StreamFence();
}

template <Activation kActivation, class T>
void GatedBackward(const GatedBackwardArgs<T>& args, Write write) {
  write = WriteAlike(args.dgate, args.dup, write);
  for (int64_t row = 0; row < args.rows; ++row) {
    const T* const gate = args.gate + row * args.stride;
    const T* const up = args.up + row * args.stride;
    const T* const dout = args.dout + row * args.hidden;
    T* const dgate = args.dgate + row * args.stride;
    T* const dup = args.dup + row * args.stride;
    EachUnfenced<Turn<kActivation>>(args.hidden, dgate, write, [&](auto io, int64_t i) {
      FetchAhead(io, gate + i, up + i, dout + i);
      const auto gradient = GatedElementBackward<kActivation, T>(io.Read(gate + i), io.Read(up + i),
                                                                 io.Read(dout + i), io.kSetAll);
      io.WriteOut(dgate + i, gradient.gate);
      io.WriteOut(dup + i, gradient.up);
    });
  }
  StreamFence();
}

template <class T>
constexpr ActivationLoops<T> MakeActivationLoops() {
  constexpr Activation kS = Activation::kSilu;
  constexpr Activation kG = Activation::kGelu;
  constexpr Activation kT = Activation::kGeluTanh;
  return {
      .forward = {ActivationForward<kS, T>, ActivationForward<kG, T>, ActivationForward<kT, T>},
      .backward = {ActivationBackward<kS, T>, ActivationBackward<kG, T>, ActivationBackward<kT, T>},
      .gated_forward = {GatedForward<kS, T>, GatedForward<kG, T>, GatedForward<kT, T>},
      .gated_backward = {GatedBackward<kS, T>, GatedBackward<kG, T>, GatedBackward<kT, T>},
  };
}

}  // namespace
}  // namespace dtrain::kernels::DT_SIMD
