// e^x for x <= 0, F = a SIMD vector, or float in CUDA: at most 2 ulp off.
#pragma once

#include "kernels/float_math.h"
#include "kernels/host_device.h"

namespace dtrain::kernels {

// e^r 2^n for |r| <= ln 2 / 2 and n in [-152, 0]: e^r = 1 + r + r^2 q(r), where q is a minimax
// polynomial (own fit, 5e-11 relative). `set` makes an F of a float; F's namespace has its
// operations, float's are in float_math.h.
template <class F, class Set>
DT_HOST_DEVICE inline F ExpOfReduced(F r, F n, Set set) {
  // By pairs of coefficients, of which none waits for another.
  const F square = r * r;
  F q = Fma(set(0x1.9f081p-13F), r, set(0x1.6d8dbp-10F));
  q = Fma(q, square, Fma(set(0x1.111272p-7F), r, set(0x1.55548ep-5F)));
  q = Fma(q, square, Fma(set(0x1.555554p-3F), r, set(0.5F)));
  return ScaleDownByPow2(Fma(q, square, r) + set(1.0F), n);
}

// e^x for x <= 0 or NaN, with x = n ln 2 + r. Results below the smallest normal are rounded to
// subnormal values, NaN stays NaN. (e^-104 rounds to zero; Max gives its second argument for a
// NaN.)
template <class F, class Set>
DT_HOST_DEVICE inline F ExpNonPositive(F x, Set set) {
  const F clamped = Max(set(-104.0F), x);
  // x / ln 2 to the nearest integer: beside 1.5 * 2^23 a float has no fraction.
  const F n = Fma(clamped, set(0x1.715476p+0F), set(0x1.8p+23F)) - set(0x1.8p+23F);
  // ln 2 in two parts; the fused multiplication keeps the first exact.
  const F r = Fma(n, set(0x1.05c61p-29F), Fma(n, set(-0x1.62e43p-1F), clamped));
  return ExpOfReduced(r, n, set);
}

// e^x for x <= 0 or NaN, for data in bf16: x / ln 2 is one product, so that the relative error is
// 1e-7 (1 + |x| / 3), a thousandth of what the type's rounding adds while |x| < 16. With 2^r, |r|
// <= 1/2, by a minimax polynomial (own fit, 8e-8 relative).
template <class F, class Set>
DT_HOST_DEVICE inline F ExpNonPositiveShort(F x, Set set) {
  const F clamped = Max(set(-104.0F), x);
  const F n = Fma(clamped, set(0x1.715476p+0F), set(0x1.8p+23F)) - set(0x1.8p+23F);
  const F r = Fms(clamped, set(0x1.715476p+0F), n);
  F p = set(0x1.5c0902p-10F);
  p = Fma(p, r, set(0x1.3d0c5ep-7F));
  p = Fma(p, r, set(0x1.c6b6e6p-5F));
  p = Fma(p, r, set(0x1.ebf918p-3F));
  p = Fma(p, r, set(0x1.62e428p-1F));
  return ScaleDownByPow2(Fma(p, r, set(1.0F)), n);
}

}  // namespace dtrain::kernels
