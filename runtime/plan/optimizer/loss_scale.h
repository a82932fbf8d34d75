// Dynamic loss scaling for fp16, with DeepSpeed's rules (deepspeed/runtime/fp16/loss_scaler.py):
// an overflow of a gradient halves the scale, and the `window`th update after the first one without
// overflow doubles it. Pure.
#pragma once

#include <cstdint>

#include "dtrain/config.h"

namespace dtrain::plan {

// Saved in checkpoints.
struct LossScale {
  double scale = 1;
  int64_t hysteresis = 0;      // The scale is halved at the overflow that finds 1 here.
  int64_t steps = 0;           // Steps so far, those that overflowed included.
  int64_t last_overflow = -1;  // The value of `steps` at the last overflow.
  bool operator==(const LossScale&) const = default;
};

// The scale at the start of a run: 1 unless precision is fp16.
LossScale FirstLossScale(const PrecisionConfig& precision);

// The scale after a step. A fixed scale never changes.
LossScale NextLossScale(const PrecisionConfig& precision, LossScale now, bool overflow);

// Whether an overflow at this scale would need a smaller scale than the smallest one allowed.
bool IsSmallest(const PrecisionConfig& precision, const LossScale& now);

}  // namespace dtrain::plan
