// The gradient's sum of squares with the same bits however gradients are shared out and cut.
#pragma once

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "runtime/gradients/gradient_sync.h"
#include "runtime/plan/layout/layout.h"

namespace dtrain {

// Collective when gradients are sharded. A tree over blocks of kernels::kNormBlock elements at the
// layout's offsets, whose sums come from whoever owns the block: equal at every ZeRO stage, bucket
// size and transport. REQUIRES: owned ranges begin at whole blocks.
absl::StatusOr<GradientSquares> OrderedSquares(comm::Group& group, const plan::ParamLayout& layout,
                                               const ReducedRanges& reduced,
                                               const ReducedGradient& gradient);

}  // namespace dtrain
