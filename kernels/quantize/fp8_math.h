// FP8 codes as integer arithmetic on fp32 bits, for U = a SIMD vector of words, or uint32_t in CUDA
// and host code: no instruction is needed that only some machines have.
#pragma once

#include <cstdint>

#include "kernels/float_math.h"
#include "kernels/host_device.h"
#include "kernels/quantize/fp8.h"
#include "kernels/word_math.h"

namespace dtrain::kernels {

template <Fp8Format kFormat>
struct Fp8Layout {
  static constexpr bool kE4m3 = kFormat == Fp8Format::kE4m3;
  static constexpr int kMantissa = kE4m3 ? 3 : 2;
  static constexpr uint32_t kBias = kE4m3 ? 7 : 15;
  static constexpr int kShift = 23 - kMantissa;
  static constexpr uint32_t kLargest = kE4m3 ? 0x7e : 0x7b;
  // fp32 bits of the smallest normal value, 2^(1 - bias).
  static constexpr uint32_t kNormal = (127 + 1 - kBias) << 23;
  // A power of two whose fp32 spacing is that of the subnormal values, 2^(1 - bias - mantissa).
  static constexpr uint32_t kSpacing = (127 + 1 - kBias + kShift) << 23;
  static constexpr uint32_t kRebias = (127 - kBias) << kMantissa;
};

// The code of x. `set` makes a U of a word.
template <Fp8Format kFormat, class F, class SetWord>
DT_HOST_DEVICE inline auto EncodeFp8(F x, SetWord set) {
  using L = Fp8Layout<kFormat>;
  const auto bits = Bits(x);
  const auto magnitude = bits & set(0x7fffffffU);
  // Adding it leaves the count of spacings in the low bits, rounded by the addition.
  const auto spacing = set(L::kSpacing);
  const auto subnormal = Bits(FromBits(magnitude) + FromBits(spacing)) - spacing;
  const auto odd = ShiftRight<L::kShift>(magnitude) & set(1U);
  const auto half = set((1U << (L::kShift - 1)) - 1);
  const auto normal = ShiftRight<L::kShift>(magnitude + half + odd) - set(L::kRebias);
  const auto finite = SelectAtLeast(magnitude, set(L::kNormal), normal, subnormal);
  const auto code =
      SelectAtLeast(magnitude, set(0x7f800001U), set(0x7fU), Min(finite, set(L::kLargest)));
  return code | (ShiftRight<24>(bits) & set(0x80U));
}

// The value of a code. `set_float` makes an F of a float.
template <Fp8Format kFormat, class U, class SetWord, class SetFloat>
DT_HOST_DEVICE inline auto DecodeFp8(U code, SetWord set, SetFloat set_float) {
  using L = Fp8Layout<kFormat>;
  const auto magnitude = code & set(0x7fU);
  const auto normal = ShiftLeft<L::kShift>(magnitude + set(L::kRebias));
  const float unit = L::kE4m3 ? 0x1p-9F : 0x1p-16F;
  const auto subnormal = Bits(ToFloats(magnitude) * set_float(unit));
  auto bits = SelectAtLeast(magnitude, set(1U << L::kMantissa), normal, subnormal);
  if constexpr (L::kE4m3) {
    bits = SelectAtLeast(magnitude, set(0x7fU), set(0x7fc00000U), bits);
  } else {
    bits = SelectAtLeast(magnitude, set(0x7cU), set(0x7f800000U), bits);
    bits = SelectAtLeast(magnitude, set(0x7dU), set(0x7fc00000U), bits);
  }
  return FromBits(bits | (ShiftLeft<24>(code & set(0x80U))));
}

}  // namespace dtrain::kernels
