// The element math of AdamW, for F = a SIMD vector, or float in CUDA.
#pragma once

#include "kernels/float_math.h"
#include "kernels/host_device.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/scaled_gradient.h"

namespace dtrain::kernels {

template <class F>
struct AdamWState {
  F p, m, v;
};

// `set` makes an F of a float; F's namespace has its operations, float's are in float_math.h.
template <class F, class Set>
DT_HOST_DEVICE inline AdamWState<F> AdamWElement(AdamWState<F> s, F gradient,
                                                 const AdamWStepScalars& scalars, Set set) {
  const F scaled = ScaledGradient(gradient, scalars.grad_scale, scalars.grad_limit, set);
  const F g = Fma(set(scalars.l2), s.p, scaled);
  s.m = Fma(set(scalars.one_minus_beta1), g - s.m, s.m);
  s.v = Fma(set(scalars.beta2), s.v, set(scalars.one_minus_beta2) * g * g);
  const F denominator = Fma(Sqrt(s.v), set(scalars.inverse_sqrt_correction), set(scalars.eps));
  const F update = set(scalars.step_size) * (s.m / denominator);
  s.p = s.p - Fma(set(scalars.decay), s.p, update);
  return s;
}

}  // namespace dtrain::kernels
