// exp for F = a SIMD vector, or float in CUDA: at most 2 ulp off over all of fp32.
#pragma once

#include "kernels/float_math.h"
#include "kernels/host_device.h"

namespace dtrain::kernels {

// e^x for x in [-104, 89] or NaN.
//
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), where q is a minimax polynomial (own
// fit, 5e-11 relative); then the multiplication by 2^n.
// `set` makes an F of a float; F's namespace has its operations, float's are in float_math.h.
template <class F, class Set>
DT_HOST_DEVICE inline F ExpInRange(F x, Set set) {
  // x / ln 2 to the nearest integer: beside 1.5 * 2^23 a float has no fraction.
  const F shifted = Fma(x, set(0x1.715476p+0F), set(0x1.8p+23F));
  const F n = shifted - set(0x1.8p+23F);
  // ln 2 in two parts; the fused multiplication keeps the first exact.
  const F r = Fma(n, set(0x1.05c61p-29F), Fma(n, set(-0x1.62e43p-1F), x));
  F q = set(0x1.9f081p-13F);
  q = Fma(q, r, set(0x1.6d8dbp-10F));
  q = Fma(q, r, set(0x1.111272p-7F));
  q = Fma(q, r, set(0x1.55548ep-5F));
  q = Fma(q, r, set(0x1.555554p-3F));
  q = Fma(q, r, set(0.5F));
  q = Fma(q, r, set(1.0F));
  return ScaleByPow2(Fma(q, r, set(1.0F)), n);
}

// e^x. Results above the largest fp32 are infinity, those below the smallest normal are rounded to
// subnormal values, NaN stays NaN. (e^89 overflows and e^-104 rounds to zero; Max and Min give
// their second argument for a NaN.)
template <class F, class Set>
DT_HOST_DEVICE inline F Exp(F x, Set set) {
  return ExpInRange(Min(set(89.0F), Max(set(-104.0F), x)), set);
}

// e^x for x <= 0 or NaN.
template <class F, class Set>
DT_HOST_DEVICE inline F ExpNonPositive(F x, Set set) {
  return ExpInRange(Max(set(-104.0F), x), set);
}

}  // namespace dtrain::kernels
