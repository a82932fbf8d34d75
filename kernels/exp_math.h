// e^x for x <= 0, F = a SIMD vector, or float in CUDA: at most 2 ulp off.
#pragma once

#include "kernels/float_math.h"
#include "kernels/host_device.h"

namespace dtrain::kernels {

// Beside 1.5 * 2^23 a float has no fraction: x + kExponentAt is x rounded to the nearest integer n,
// and its low bits are the biased exponent of 2^(n + 64).
constexpr float kExponentAt = 0x1.8p+23F + 127 + 64;

// e^r 2^n for |r| <= ln 2 / 2, t = n + kExponentAt and n in [-152, 0]: e^r = 1 + r + r^2 q(r),
// where q is a minimax polynomial (own fit, 3e-9 relative). The polynomial is 2^-64 of e^r and the
// power 2^64 too large, so that both are normal and their product is rounded once; a NaN in r
// stays. By Horner's rule, which takes the fewest registers. `set` makes an F of a float; F's
// namespace has its operations, float's are in float_math.h.
template <class F, class Set>
DT_HOST_DEVICE inline F ExpOfReduced(F r, F t, Set set) {
  F p = Fma(set(0x1.6a2432p-74F), r, set(0x1.1239e2p-71F));
  p = Fma(p, r, set(0x1.5558f2p-69F));
  p = Fma(p, r, set(0x1.555492p-67F));
  p = Fma(p, r, set(0x1.fffffcp-66F));
  p = Fma(p, r, set(0x1p-64F));
  return Fma(p, r, set(0x1p-64F)) * Pow2OfLowBits(t);
}

// The same of 2^r, |r| <= 1/2, to 3e-6.
template <class F, class Set>
DT_HOST_DEVICE inline F Exp2OfReducedShort(F r, F t, Set set) {
  F p = Fma(set(0x1.3a02acp-71F), r, set(0x1.c9fc9ap-69F));
  p = Fma(p, r, set(0x1.ec0378p-67F));
  p = Fma(p, r, set(0x1.62e12cp-65F));
  return Fma(p, r, set(0x1p-64F)) * Pow2OfLowBits(t);
}

// e^x for x <= 0 or NaN, with x = n ln 2 + r. Results below the smallest normal are rounded to
// subnormal values, NaN stays NaN. (e^-104 rounds to zero; Max gives its second argument for a
// NaN.)
template <class F, class Set>
DT_HOST_DEVICE inline F ExpNonPositive(F x, Set set) {
  const F clamped = Max(set(-104.0F), x);
  const F t = Fma(clamped, set(0x1.715476p+0F), set(kExponentAt));
  const F n = t - set(kExponentAt);
  // ln 2 in two parts; the fused multiplication keeps the first exact.
  const F r = Fma(n, set(0x1.05c61p-29F), Fma(n, set(-0x1.62e43p-1F), clamped));
  return ExpOfReduced(r, t, set);
}

// e^x for x <= 0 or NaN, for data in sixteen bits: x / ln 2 is one product, so that the relative
// error is 3e-6 + 3e-8 |x|, at most a sixty-fourth of what fp16's rounding adds and a five
// hundredth of bf16's while |x| < 30.
template <class F, class Set>
DT_HOST_DEVICE inline F ExpNonPositiveShort(F x, Set set) {
  const F clamped = Max(set(-104.0F), x);
  const F t = Fma(clamped, set(0x1.715476p+0F), set(kExponentAt));
  const F r = Fms(clamped, set(0x1.715476p+0F), t - set(kExponentAt));
  return Exp2OfReducedShort(r, t, set);
}

// Whether a T's own rounding hides what the short forms leave out.
template <class T>
constexpr bool kShortMath = sizeof(T) < sizeof(float);

// The one of the two that is for data of type T.
template <class T, class F, class Set>
DT_HOST_DEVICE inline F ExpNonPositiveFor(F x, Set set) {
  if constexpr (kShortMath<T>) {
    return ExpNonPositiveShort(x, set);
  } else {
    return ExpNonPositive(x, set);
  }
}

}  // namespace dtrain::kernels
