// The operations of U32x16 (simd_bits_scalar.h) on a single word, for CUDA and for host code.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"

namespace dtrain::kernels {

DT_HOST_DEVICE inline uint32_t Bits(float x) { return __builtin_bit_cast(uint32_t, x); }
DT_HOST_DEVICE inline float FromBits(uint32_t x) { return __builtin_bit_cast(float, x); }
// REQUIRES: x below 2^31.
DT_HOST_DEVICE inline float ToFloats(uint32_t x) {
  return static_cast<float>(static_cast<int32_t>(x));
}
template <int kBits>
DT_HOST_DEVICE inline uint32_t ShiftLeft(uint32_t x) {
  return x << kBits;
}
template <int kBits>
DT_HOST_DEVICE inline uint32_t ShiftRight(uint32_t x) {
  return x >> kBits;
}
DT_HOST_DEVICE inline uint32_t Min(uint32_t a, uint32_t b) { return a < b ? a : b; }
DT_HOST_DEVICE inline uint32_t Max(uint32_t a, uint32_t b) { return a > b ? a : b; }
DT_HOST_DEVICE inline uint32_t Xor(uint32_t a, uint32_t b, uint32_t c) { return a ^ b ^ c; }
// a where x >= limit, else b.
DT_HOST_DEVICE inline uint32_t SelectAtLeast(uint32_t x, uint32_t limit, uint32_t a, uint32_t b) {
  return x >= limit ? a : b;
}
// The halves of the 64-bit product.
DT_HOST_DEVICE inline void Multiply(uint32_t a, uint32_t b, uint32_t& high, uint32_t& low) {
  const uint64_t product = static_cast<uint64_t>(a) * b;
  high = static_cast<uint32_t>(product >> 32);
  low = static_cast<uint32_t>(product);
}

}  // namespace dtrain::kernels
