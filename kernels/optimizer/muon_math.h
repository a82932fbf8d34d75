// The element math of Muon, for F = a SIMD vector, or float in CUDA.
#pragma once

#include "kernels/host_device.h"
#include "kernels/optimizer/muon.h"
#include "kernels/optimizer/one_state.h"
#include "kernels/optimizer/scaled_gradient.h"

namespace dtrain::kernels {

// `s.p` is the direction that comes out.
template <class F, class Set>
DT_HOST_DEVICE inline OneState<F> MuonDirectionElement(F state, F gradient,
                                                       const MuonStepScalars& scalars, Set set) {
  const F g = ScaledGradient(gradient, scalars.grad_scale, scalars.grad_limit, set);
  const F next = Fma(set(scalars.one_minus_momentum), g - state, state);
  return {Fma(set(scalars.share_of_state), next - g, g), next};
}

template <class F, class Set>
DT_HOST_DEVICE inline F MuonApplyElement(F weight, F direction, float step, float decay, Set set) {
  return weight - Fma(set(decay), weight, set(step) * direction);
}

}  // namespace dtrain::kernels
