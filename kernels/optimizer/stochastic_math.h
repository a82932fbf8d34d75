// Stochastic rounding to bf16, for F = a SIMD vector, or float in CUDA.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/word_math.h"

namespace dtrain::kernels {

// x as a bf16 value: away from zero with the probability random / 2^16 that the bits cut off are.
// REQUIRES: random below 2^16. `set` makes words of a uint32_t.
template <class F, class U, class SetWord>
DT_HOST_DEVICE inline F RoundStochastic(F x, U random, SetWord set) {
  const U bits = Bits(x);
  const U rounded = (bits + random) & set(0xffff0000U);
  const U magnitude = bits & set(0x7fffffffU);
  return FromBits(SelectAtLeast(magnitude, set(0x7f800000U), bits, rounded));
}

}  // namespace dtrain::kernels
