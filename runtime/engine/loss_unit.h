// Chooses the scale by which fp16 multiplies the loss's sum, and checks a loss before its backward.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "dtrain/job.h"
#include "dtrain/loss.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

// Before a backward in fp16. The scale is that of the configuration where it fixes one: a
// checkpoint may be of a run that had another. Collective, once: the unit is the power of two
// nearest to the `count` of rank 0's micro-batch, at least 1: exact to multiply with, and the same
// on every rank whatever its own count.
absl::Status TakeLossScale(Job& job, int64_t count, EngineState& state);

// InvalidArgument: `loss` is no number that depends on a trainable parameter, or counts less than
// 0.
absl::Status CheckLoss(const Loss& loss);

}  // namespace dtrain
