// The element math of Lion, for F = a SIMD vector, or float in CUDA.
#pragma once

#include "kernels/optimizer/lion.h"
#include "kernels/optimizer/one_state.h"
#include "kernels/optimizer/scaled_gradient.h"

namespace dtrain::kernels {

struct LionRule {
  template <class F, class Set>
  DT_HOST_DEVICE static OneState<F> Element(OneState<F> x, F gradient,
                                            const LionStepScalars& scalars, Set set) {
    const F g = ScaledGradient(gradient, scalars.grad_scale, scalars.grad_limit, set);
    const F difference = g - x.s;
    const F direction = Sign(Fma(set(scalars.one_minus_beta1), difference, x.s));
    x.s = Fma(set(scalars.one_minus_beta2), difference, x.s);
    x.p = x.p - Fma(set(scalars.decay), x.p, set(scalars.step) * direction);
    return x;
  }
};

}  // namespace dtrain::kernels
