// The element math of LAMB, for F = a SIMD vector, or float in CUDA.
#pragma once

#include <cmath>

#include "kernels/host_device.h"
#include "kernels/optimizer/lamb.h"
#include "kernels/optimizer/scaled_gradient.h"

namespace dtrain::kernels {

template <class F>
struct LambMoments {
  F m, v;
};

template <class F, class Set>
DT_HOST_DEVICE inline LambMoments<F> LambMomentsElement(LambMoments<F> s, F gradient,
                                                        const LambStepScalars& scalars, Set set) {
  const F g = ScaledGradient(gradient, scalars.grad_scale, scalars.grad_limit, set);
  s.m = Fma(set(scalars.one_minus_beta1), g - s.m, s.m);
  s.v = Fma(set(scalars.beta2), s.v, set(scalars.one_minus_beta2) * g * g);
  return s;
}

// The change of a weight before step size and trust.
template <class F, class Set>
DT_HOST_DEVICE inline F LambUpdate(F p, LambMoments<F> s, const LambStepScalars& scalars, Set set) {
  return Fma(set(scalars.weight_decay), p, s.m / (Sqrt(s.v) + set(scalars.eps)));
}

// |w| / |u| within its limits.
DT_HOST_DEVICE inline double LambTrustOf(const LambSums& sums, double least, double most) {
  if (!(sums.weights > 0 && sums.updates > 0)) {
    return 1;
  }
  const double trust = sqrt(sums.weights) / sqrt(sums.updates);
  return trust < least ? least : trust > most ? most : trust;
}

}  // namespace dtrain::kernels
