// Dynamic loss scaling for fp16, with DeepSpeed's rules (deepspeed/runtime/fp16/loss_scaler.py):
// the scale is halved when a gradient overflows and doubled in the last of `window` updates behind
// the first without one. Pure.
#pragma once

#include <cstdint>

#include "dtrain/config.h"

namespace dtrain::plan {

// Saved in checkpoints.
struct LossScale {
  double scale = 1;
  int64_t hysteresis = 0;      // Overflows left that do not change the scale, and one.
  int64_t steps = 0;           // Seen, those that overflowed included.
  int64_t last_overflow = -1;  // Of `steps`.
  bool operator==(const LossScale&) const = default;
};

// At the start of a run: 1 unless precision is fp16.
LossScale FirstLossScale(const PrecisionConfig& precision);

// After a step. A fixed scale never changes.
LossScale NextLossScale(const PrecisionConfig& precision, LossScale now, bool overflow);

// Whether an overflow at this scale can only be answered by a smaller one, which there is not.
bool IsSmallest(const PrecisionConfig& precision, const LossScale& now);

}  // namespace dtrain::plan
