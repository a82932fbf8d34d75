// The one rule by which a length in epochs becomes a number of steps. Pure; thread-safe.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace dtrain {

// The steps of `epochs` rounds through data of which one round takes `steps_per_epoch` steps, which
// is no whole number where a step goes on with the next round: rounded up, at least 1. What the
// arithmetic of floating point adds to a whole number makes no further step: 0.1 epochs of 30
// steps are 3. REQUIRES: both are above 0.
inline int64_t StepsOfEpochs(double epochs, double steps_per_epoch) {
  constexpr double kStepsMax = 9007199254740992.0;  // 2^53, up to which doubles count.
  constexpr double kRounding = 1e-12;               // Some thousand times that of one product.
  const double steps = std::min(epochs * steps_per_epoch, kStepsMax);
  const double nearest = std::round(steps);
  const bool is_whole = std::abs(steps - nearest) <= kRounding * steps;
  return std::max<int64_t>(1, std::llround(is_whole ? nearest : std::ceil(steps)));
}

}  // namespace dtrain
