// How every optimizer kernel reads its gradient: unscaled, clipped by the norm and by value.
#pragma once

#include <limits>

#include "kernels/float_math.h"
#include "kernels/host_device.h"

namespace dtrain::kernels {

// Infinity, where options say 0 for no limit.
constexpr float LimitOrNone(double limit) {
  return limit > 0 ? static_cast<float>(limit) : std::numeric_limits<float>::infinity();
}

// gradient * scale, at most `limit` in magnitude; a NaN stays one.
template <class F, class Set>
DT_HOST_DEVICE inline F ScaledGradient(F gradient, float scale, float limit, Set set) {
  return Max(set(-limit), Min(set(limit), gradient * set(scale)));
}

}  // namespace dtrain::kernels
