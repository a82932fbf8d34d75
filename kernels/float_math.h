// The operations of the shared kernel math on a single float, for CUDA and for host code.
//
// CUDA files are compiled with --fmad=false, so that a multiply-add is fused only where Fma says so
// and a GPU gives the bits of the CPU variants.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/host_device.h"

namespace dtrain::kernels {

DT_HOST_DEVICE inline float Fma(float a, float b, float c) { return fmaf(a, b, c); }
DT_HOST_DEVICE inline float Fms(float a, float b, float c) { return fmaf(a, b, -c); }
DT_HOST_DEVICE inline float NegatedFma(float a, float b, float c) { return fmaf(-a, b, c); }
DT_HOST_DEVICE inline float Sqrt(float a) { return sqrtf(a); }
DT_HOST_DEVICE inline float Round(float a) { return rintf(a); }
// The second argument where either is NaN.
DT_HOST_DEVICE inline float Max(float a, float b) { return a > b ? a : b; }
DT_HOST_DEVICE inline float Min(float a, float b) { return a < b ? a : b; }
DT_HOST_DEVICE inline float Abs(float a) { return fabsf(a); }
DT_HOST_DEVICE inline float NegativeAbs(float a) { return -fabsf(a); }
// 1 with a's sign; 0 for +-0.
DT_HOST_DEVICE inline float Sign(float a) { return a == 0 ? 0.0F : copysignf(1.0F, a); }
DT_HOST_DEVICE inline float SelectPositive(float x, float a, float b) {
  return __builtin_bit_cast(int32_t, x) < 0 ? b : a;
}
// 1 / x to 13 %, for normal x > 0 below 2^126.
DT_HOST_DEVICE inline float RoughInverse(float x) {
  return __builtin_bit_cast(float, 0x7ef311c7U - __builtin_bit_cast(uint32_t, x));
}
// REQUIRES: n is integral and in [-126, 127]; NaN gives any value.
DT_HOST_DEVICE inline float Pow2(float n) {
  const int32_t exponent = n == n ? static_cast<int32_t>(n) : 0;
  return __builtin_bit_cast(float, (exponent + 127) << 23);
}
// x * 2^n, rounded once. REQUIRES: n is integral and in [-252, 254], |x| in [0.5, 2); NaN stays.
DT_HOST_DEVICE inline float ScaleByPow2(float x, float n) {
  const float half = Round(n * 0.5F);
  return x * Pow2(half) * Pow2(n - half);
}

}  // namespace dtrain::kernels
