// The element math of the activations, for F = a SIMD vector, or float in CUDA. `set` makes an F of
// a float.
#pragma once

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/exp_math.h"
#include "kernels/float_math.h"
#include "kernels/host_device.h"

namespace dtrain::kernels {

// Divisions take a vector unit ten cycles, which is more than the rest of a sigmoid; these take
// four.

// One step of Newton's: the relative error is squared.
template <class F, class Set>
DT_HOST_DEVICE inline F RefineInverse(F inverse, F x, Set set) {
  return Fma(inverse, NegatedFma(x, inverse, set(1.0F)), inverse);
}

// 1 / x for x in [1, 2], to 1 ulp. The parabola whose relative error is Chebyshev's T3 / 99; two
// steps take it below fp32's.
template <class F, class Set>
DT_HOST_DEVICE inline F InverseOfOneToTwo(F x, Set set) {
  F inverse = Fma(set(32.0F / 99), x, set(-144.0F / 99));
  inverse = Fma(inverse, x, set(210.0F / 99));
  return RefineInverse(RefineInverse(inverse, x, set), x, set);
}

// 1 / x for x in [2^-60, 2^60], to 1 ulp: two steps of the third order (0.13^9).
template <class F, class Set>
DT_HOST_DEVICE inline F Inverse(F x, Set set) {
  F inverse = RoughInverse(x);
  for (int step = 0; step < 2; ++step) {
    const F error = NegatedFma(x, inverse, set(1.0F));
    inverse = Fma(inverse, Fma(error, error, error), inverse);
  }
  return inverse;
}

template <class F>
struct Sigmoids {
  F sigmoid;     // 1 / (1 + e^-x).
  F complement;  // 1 - sigmoid, without cancellation.
};

// Both from z = e^-|x| <= 1, so that nothing overflows and silu keeps its relative accuracy for
// very negative x.
template <class F, class Set>
DT_HOST_DEVICE inline Sigmoids<F> Sigmoid(F x, Set set) {
  const F one = set(1.0F);
  const F z = ExpNonPositive(NegativeAbs(x), set);
  const F sum = one + z;
  const F large = InverseOfOneToTwo(sum, set);
  const F small = z * large;
  return {SelectPositive(x, large, small), SelectPositive(x, small, large)};
}

template <class F>
struct Normal {
  F magnitude;  // |x|, at most 14.4.
  F tail;       // P(N(0, 1) > |x|), with relative accuracy.
  F density;    // e^(-x^2 / 2) / sqrt(2 pi).
};

// P(N(0, 1) > a) = e^(-a^2 / 2) p(t) / (a + 3.4) for a = |x|, with t = (a - 3.4) / (a + 3.4) and a
// minimax polynomial p (own fit, 3e-9 relative for a <= 14; beyond that the product is below fp32).
// The exponential takes a^2 / 2 unrounded: n times the first part of ln 2, which has 16 bits, is
// exact, and so is their difference but for its own rounding.
template <class F, class Set>
DT_HOST_DEVICE inline Normal<F> NormalOf(F x, Set set) {
  const F a = Min(set(14.4F), Abs(x));  // A NaN stays.
  const F half = a * set(-0.5F);
  const F n = Fma(half * set(0x1.715476p+0F), a, set(0x1.8p+23F)) - set(0x1.8p+23F);
  const F r = NegatedFma(n, set(0x1.7f7d1cp-20F), Fms(half, a, n * set(0x1.62e4p-1F)));
  const F z = ExpOfReduced(r, n, set);
  const F inverse = Inverse(a + set(3.4F), set);
  const F t = Fma(set(-6.8F), inverse, set(1.0F));
  const F square = t * t;
  F p = Fma(set(0x1.13dfd6p-13F), t, set(0x1.6003fcp-12F));
  p = Fma(p, square, Fma(set(-0x1.9da61p-11F), t, set(-0x1.41432p-9F)));
  p = Fma(p, square, Fma(set(0x1.f3e33ep-8F), t, set(0x1.53f6ap-7F)));
  p = Fma(p, square, Fma(set(-0x1.a1680ap-4F), t, set(0x1.32a47ap-2F)));
  p = Fma(p, square, Fma(set(-0x1.1c74c8p-1F), t, set(0x1.7bc962p-1F)));
  return {a, z * (p * inverse), z * set(0x1.988454p-2F)};
}

// 2 sqrt(2 / pi) and 0.044715 of it: 2u = x (kTanhLinear + kTanhCubic x^2).
constexpr float kTanhLinear = 1.5957691216F;
constexpr float kTanhCubic = 0.0713548163F;

template <class F>
struct Activated {
  F value, slope;  // act(x) and act'(x); what is not used is not computed.
};

template <Activation kActivation, class F, class Set>
DT_HOST_DEVICE inline Activated<F> Activate(F x, Set set) {
  const F one = set(1.0F);
  if constexpr (kActivation == Activation::kSilu) {
    const Sigmoids<F> s = Sigmoid(x, set);
    return {x * s.sigmoid, s.sigmoid * Fma(x, s.complement, one)};
  } else if constexpr (kActivation == Activation::kGelu) {
    // x P(N < x) is x - x tail above 0 (of the magnitude: infinity times 0 is NaN), x tail below.
    const Normal<F> normal = NormalOf(x, set);
    const F value =
        SelectPositive(x, NegatedFma(normal.magnitude, normal.tail, x), x * normal.tail);
    const F distribution = SelectPositive(x, one - normal.tail, normal.tail);
    return {value, Fma(x, normal.density, distribution)};
  } else {
    // Where |x| > 40 the sigmoid is 0 or 1, and x^2 must not overflow.
    const F near = Max(set(-40.0F), Min(set(40.0F), x));
    const F square = near * near;
    const Sigmoids<F> s = Sigmoid(near * Fma(set(kTanhCubic), square, set(kTanhLinear)), set);
    const F inner = near * Fma(set(3 * kTanhCubic), square, set(kTanhLinear));
    return {x * s.sigmoid, s.sigmoid * Fma(inner, s.complement, one)};
  }
}

// Where element i of a packed [rows, hidden] stands in a buffer whose rows are `stride` apart.
DT_HOST_DEVICE inline int64_t GatedOffset(int64_t i, int64_t hidden, int64_t stride) {
  return stride == hidden ? i : i / hidden * stride + i % hidden;
}

template <class F>
struct GatedGradient {
  F gate, up;
};

template <Activation kActivation, class F, class Set>
DT_HOST_DEVICE inline GatedGradient<F> GatedElementBackward(F gate, F up, F dout, Set set) {
  const Activated<F> act = Activate<kActivation>(gate, set);
  return {dout * up * act.slope, dout * act.value};
}

}  // namespace dtrain::kernels
