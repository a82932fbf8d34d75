#include "runtime/plan/optimizer/loss_scale.h"

#include <algorithm>
#include <cmath>

namespace dtrain::plan {
namespace {

constexpr double kFactor = 2;

bool IsDynamic(const PrecisionConfig& precision) {
  return precision.kind == PrecisionConfig::Kind::kFloat16 && precision.loss_scale == 0;
}

}  // namespace

LossScale FirstLossScale(const PrecisionConfig& precision) {
  LossScale first;
  first.hysteresis = precision.hysteresis;
  if (precision.kind == PrecisionConfig::Kind::kFloat16) {
    first.scale = IsDynamic(precision)
                      ? std::ldexp(1.0, static_cast<int>(precision.initial_scale_power))
                      : precision.loss_scale;
  }
  return first;
}

LossScale NextLossScale(const PrecisionConfig& precision, LossScale now, bool overflow) {
  if (!IsDynamic(precision)) {
    return now;
  }
  if (overflow) {
    if (now.hysteresis <= 1) {
      now.scale = std::max(now.scale / kFactor, precision.min_loss_scale);
    } else {
      --now.hysteresis;
    }
    now.last_overflow = now.steps;
  } else {
    if (precision.consecutive_hysteresis) {
      now.hysteresis = precision.hysteresis;
    }
    const int64_t stable = now.steps - now.last_overflow - 1;  // The first good step is 0.
    if (stable > 0 && stable % precision.loss_scale_window == 0) {
      now.hysteresis = precision.hysteresis;
      now.scale *= kFactor;
    }
  }
  ++now.steps;
  return now;
}

bool IsSmallest(const PrecisionConfig& precision, const LossScale& now) {
  return !IsDynamic(precision) || (now.hysteresis <= 1 && now.scale <= precision.min_loss_scale);
}

}  // namespace dtrain::plan
