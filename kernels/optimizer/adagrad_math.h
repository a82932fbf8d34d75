// The element math of Adagrad, for F = a SIMD vector, or float in CUDA.
#pragma once

#include "kernels/optimizer/adagrad.h"
#include "kernels/optimizer/one_state.h"
#include "kernels/optimizer/scaled_gradient.h"

namespace dtrain::kernels {

struct AdagradRule {
  template <class F, class Set>
  DT_HOST_DEVICE static OneState<F> Element(OneState<F> x, F gradient,
                                            const AdagradStepScalars& scalars, Set set) {
    const F scaled = ScaledGradient(gradient, scalars.grad_scale, scalars.grad_limit, set);
    const F g = Fma(set(scalars.l2), x.p, scaled);
    x.s = Fma(g, g, x.s);
    x.p = x.p - set(scalars.step) * (g / (Sqrt(x.s) + set(scalars.eps)));
    return x;
  }
};

}  // namespace dtrain::kernels
