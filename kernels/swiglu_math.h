// The element math of SwiGLU, for F = a SIMD vector, or float in CUDA.
#pragma once

#include "kernels/exp_math.h"
#include "kernels/float_math.h"
#include "kernels/host_device.h"

namespace dtrain::kernels {

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
  const F z = Exp(NegativeAbs(x), set);
  const F sum = one + z;
  const F large = one / sum;
  const F small = z * large;  // One division; the second would cost more than its half ulp.
  return {SelectPositive(x, large, small), SelectPositive(x, small, large)};
}

template <class F, class Set>
DT_HOST_DEVICE inline F SwiGluElement(F gate, F up, Set set) {
  return gate * Sigmoid(gate, set).sigmoid * up;
}

template <class F>
struct SwiGluGradient {
  F gate, up;
};

// d silu(g) / dg = s (1 + g (1 - s)).
template <class F, class Set>
DT_HOST_DEVICE inline SwiGluGradient<F> SwiGluElementBackward(F gate, F up, F dout, Set set) {
  const Sigmoids<F> s = Sigmoid(gate, set);
  const F slope = s.sigmoid * Fma(gate, s.complement, set(1.0F));
  return {dout * up * slope, dout * (gate * s.sigmoid)};
}

}  // namespace dtrain::kernels
