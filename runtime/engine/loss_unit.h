// How many samples of the loss's sum fp16 gradients are made of.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "dtrain/loss.h"

namespace dtrain {

// Collective. The power of two nearest to the count of rank 0's micro-batch, at least 1: exact to
// multiply with, and the same on every rank whatever its own count.
absl::StatusOr<double> AgreeOnLossUnit(comm::Group& group, int64_t count);

// InvalidArgument: `loss` is no number that depends on a trainable parameter, or counts less than
// 0.
absl::Status CheckLoss(const Loss& loss);

}  // namespace dtrain
