// The element math of SGD, for F = a SIMD vector, or float in CUDA.
#pragma once

#include "kernels/optimizer/one_state.h"
#include "kernels/optimizer/scaled_gradient.h"
#include "kernels/optimizer/sgd.h"

namespace dtrain::kernels {

template <class F, class Set>
DT_HOST_DEVICE inline F SgdGradient(F p, F gradient, const SgdStepScalars& scalars, Set set) {
  return Fma(set(scalars.l2), p,
             ScaledGradient(gradient, scalars.grad_scale, scalars.grad_limit, set));
}

struct SgdRule {
  template <class F, class Set>
  DT_HOST_DEVICE static OneState<F> Element(OneState<F> x, F gradient,
                                            const SgdStepScalars& scalars, Set set) {
    const F g = SgdGradient(x.p, gradient, scalars, set);
    x.s = Fma(set(scalars.keep), x.s, set(scalars.take) * g);
    const F change = Fma(set(scalars.step_of_state), x.s, set(scalars.step_of_grad) * g);
    x.p = x.p + change;
    return x;
  }
};

// Without momentum there is no state.
template <class F, class Set>
DT_HOST_DEVICE inline F PlainSgdElement(F p, F gradient, const SgdStepScalars& scalars, Set set) {
  return p + set(scalars.step_of_grad) * SgdGradient(p, gradient, scalars, set);
}

}  // namespace dtrain::kernels
