// The operations of the shared kernel math on a single float, for CUDA and for host code.
//
// CUDA files are compiled with --fmad=false, so that a multiply-add is fused only where Fma says so
// and a GPU gives the bits of the CPU variants, except those of a NaN (cuda_table.h).
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
// 2^k, where the lowest bits of t are k + 127, k's biased exponent.
DT_HOST_DEVICE inline float Pow2OfLowBits(float t) {
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, t) << 23);
}

}  // namespace dtrain::kernels
