// The element math of the activations, for F = a SIMD vector, or float in CUDA. `set` makes an F of
// a float.
#pragma once

#include <cstdint>

#include "kernels/exp_math.h"
#include "kernels/float_math.h"
#include "kernels/host_device.h"
#include "kernels/layers/activation.h"

namespace dtrain::kernels {

// T is the data's type: sixteen bits are not given more than they hold. Quotients are divisions:
// the divider works beside the units of the exponential, which Newton's steps would load.

template <class F>
struct Sigmoids {
  F sigmoid;     // 1 / (1 + e^-x).
  F complement;  // 1 - sigmoid, without cancellation.
};

// Both are computed from z = e^-|x| <= 1, so that nothing overflows and silu keeps its relative
// accuracy for very negative x.
template <class T, class F, class Set>
DT_HOST_DEVICE inline Sigmoids<F> Sigmoid(F x, Set set) {
  const F one = set(1.0F);
  const F z = ExpNonPositiveFor<T>(NegativeAbs(x), set);
  const F large = one / (one + z);
  const F small = z * large;
  return {SelectPositive(x, large, small), SelectPositive(x, small, large)};
}

// e^(-a^2 / 2) for 0 <= a <= 14.4. It takes a^2 / 2 unrounded: n times the first part of ln 2,
// which has 16 bits, is exact, and so is their difference but for its own rounding. The squares of
// sixteen-bit data are exact themselves.
template <class T, class F, class Set>
DT_HOST_DEVICE inline F ExpOfHalfSquare(F a, Set set) {
  const F half = a * set(-0.5F);
  const F square = half * a;
  const F t = Fma(square, set(0x1.715476p+0F), set(kExponentAt));
  const F n = t - set(kExponentAt);
  if constexpr (kShortMath<T>) {
    return Exp2OfReducedShort(Fms(square, set(0x1.715476p+0F), n), t, set);
  } else {
    const F r = NegatedFma(n, set(0x1.7f7d1cp-20F), Fms(half, a, n * set(0x1.62e4p-1F)));
    return ExpOfReduced(r, t, set);
  }
}

// e^(a^2 / 2) P(N(0, 1) > a) for 0 <= a <= 14.4: minimax quotients of polynomials with positive
// coefficients (own fits, 3e-8 and 4e-7 relative).
template <class T, class F, class Set>
DT_HOST_DEVICE inline F ScaledTail(F a, Set set) {
  F above, below;
  if constexpr (kShortMath<T>) {
    above = Fma(set(0x1.9878b4p-2F), a, set(0x1.652e2ap+1F));
    above = Fma(above, a, set(0x1.0e01dep+3F));
    above = Fma(above, a, set(0x1.7438e6p+3F));
    below = Fma(a + set(0x1.bf5deep+2F), a, set(0x1.63a25ep+4F));
    below = Fma(below, a, set(0x1.1b7ecap+5F));
    below = Fma(below, a, set(0x1.7438fp+4F));
  } else {
    above = Fma(set(0x1.98859p-2F), a, set(0x1.f860bap+1F));
    above = Fma(above, a, set(0x1.1c6f32p+4F));
    above = Fma(above, a, set(0x1.544de6p+5F));
    above = Fma(above, a, set(0x1.84655ap+5F));
    below = Fma(a + set(0x1.3c179ap+3F), a, set(0x1.6c5e4ep+5F));
    below = Fma(below, a, set(0x1.d2cd34p+6F));
    below = Fma(below, a, set(0x1.45198ap+7F));
    below = Fma(below, a, set(0x1.84655ap+6F));
  }
  return above / below;
}

// 2 sqrt(2 / pi) and 0.044715 of it: 2u = x (kTanhLinear + kTanhCubic x^2).
constexpr float kTanhLinear = 1.5957691216F;
constexpr float kTanhCubic = 0.0713548163F;

template <class F>
struct Activated {
  F value, slope;  // act(x) and act'(x); what is not used is not computed.
};

template <Activation kActivation, class T, class F, class Set>
DT_HOST_DEVICE inline Activated<F> Activate(F x, Set set) {
  const F one = set(1.0F);
  if constexpr (kActivation == Activation::kSilu) {
    const Sigmoids<F> s = Sigmoid<T>(x, set);
    return {x * s.sigmoid, s.sigmoid * Fma(x, s.complement, one)};
  } else if constexpr (kActivation == Activation::kGelu) {
    const F a = Min(set(14.4F), Abs(x));  // Beyond 14.4 the tail is below fp32. A NaN stays.
    const F z = ExpOfHalfSquare<T>(a, set);
    const F tail = z * ScaledTail<T>(a, set);      // P(N > |x|), with relative accuracy.
    const F bend = x * (z * set(0x1.988454p-2F));  // x times the normal density, z / sqrt(2 pi).
    // x P(N < x) is x - x tail above 0 (of the magnitude: infinity times 0 is NaN), x tail below.
    return {SelectPositive(x, NegatedFma(a, tail, x), x * tail),
            SelectPositive(x, one - tail, tail) + bend};
  } else {
    // Above |x| = 40 the sigmoid is 0 or 1; the limit keeps x^2 from overflowing.
    const F near = Max(set(-40.0F), Min(set(40.0F), x));
    const F square = near * near;
    const Sigmoids<F> s = Sigmoid<T>(near * Fma(set(kTanhCubic), square, set(kTanhLinear)), set);
    const F inner = near * Fma(set(3 * kTanhCubic), square, set(kTanhLinear));
    return {x * s.sigmoid, s.sigmoid * Fma(inner, s.complement, one)};
  }
}

// The offset of element i of a packed [rows, hidden] in a buffer whose rows are `stride` apart.
DT_HOST_DEVICE inline int64_t GatedOffset(int64_t i, int64_t hidden, int64_t stride) {
  return stride == hidden ? i : i / hidden * stride + i % hidden;
}

template <class F>
struct GatedGradient {
  F gate, up;
};

template <Activation kActivation, class T, class F, class Set>
DT_HOST_DEVICE inline GatedGradient<F> GatedElementBackward(F gate, F up, F dout, Set set) {
  const Activated<F> act = Activate<kActivation, T>(gate, set);
  return {dout * up * act.slope, dout * act.value};
}

}  // namespace dtrain::kernels
