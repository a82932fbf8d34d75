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
// x * 2^n, rounded once. REQUIRES: n is integral and in [-152, 0], x in [0.5, 2), or both are NaN.
// Beside 1.5 * 2^23 the low bits of a float are an integer, here n + 64, which is added to x's
// exponent: that of x 2^(n + 64) is always normal. n is in the last factor so that a NaN stays.
DT_HOST_DEVICE inline float ScaleDownByPow2(float x, float n) {
  const uint32_t steps = __builtin_bit_cast(uint32_t, n + (0x1.8p+23F + 64)) << 23;
  const float scaled = __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, x) + steps);
  return Fma(n, 0.0F, 0x1p-64F) * scaled;
}

}  // namespace dtrain::kernels
