// The element math of LAMB, for F = a SIMD vector.
#pragma once

#include "kernels/lamb.h"
#include "kernels/scaled_gradient.h"

namespace dtrain::kernels {

template <class F>
struct LambMoments {
  F m, v;
};

template <class F, class Set>
inline LambMoments<F> LambMomentsElement(LambMoments<F> s, F gradient,
                                         const LambStepScalars& scalars, Set set) {
  const F g = ScaledGradient(gradient, scalars.grad_scale, scalars.grad_limit, set);
  s.m = Fma(set(scalars.one_minus_beta1), g - s.m, s.m);
  s.v = Fma(set(scalars.beta2), s.v, set(scalars.one_minus_beta2) * g * g);
  return s;
}

// The change of a weight before step size and trust.
template <class F, class Set>
inline F LambUpdate(F p, LambMoments<F> s, const LambStepScalars& scalars, Set set) {
  return Fma(set(scalars.weight_decay), p, s.m / (Sqrt(s.v) + set(scalars.eps)));
}

}  // namespace dtrain::kernels
