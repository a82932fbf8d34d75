// bf16 and fp16 as 16-bit patterns, with scalar conversions that round to nearest even.
//
// The one definition that kernels (CPU oracles) and comm (reductions) share; SIMD forms are beside
// their loops and are tested against these. Pure.
#pragma once

#include <bit>
#include <cstdint>

namespace dtrain {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};
static_assert(sizeof(BFloat16) == 2 && sizeof(Float16) == 2);
static_assert(std::endian::native == std::endian::little, "every dtrain format is little-endian");

inline float ToFloat(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// Round to nearest even; every NaN becomes a quiet NaN of the same sign.
inline BFloat16 ToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return {static_cast<uint16_t>((bits >> 16) | 0x40U)};
  }
  return {static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

inline float ToFloat(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000U) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fU;
  const uint32_t mantissa = value.bits & 0x3ffU;
  if (exponent == 0x1f) {
    return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13) |
                                (mantissa != 0 ? 0x400000U : 0U));
  }
  if (exponent == 0) {  // Zero and subnormals: mantissa x 2^-24, exact in fp32.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

inline Float16 ToFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {
    return {static_cast<uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x1ffU))};
  }
  if (magnitude >= 0x477ff000U) {  // Rounds to 65536 or more.
    return {static_cast<uint16_t>(sign | 0x7c00U)};
  }
  if (magnitude < 0x38800000U) {  // Subnormal: adding 0.5 lets the FPU round at 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000U))};
  }
  const uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000U) >> 13))};
}

}  // namespace dtrain
