// The host's questions about the reduced gradient of a step: its ordered sum of squares, and which
// parameter's gradient is not finite.
#pragma once

#include <cstdint>
#include <string>

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

// Collective. The first parameter in backward's order (the layout's) whose reduced gradient holds
// an infinity or a NaN, so the one nearest to the loss; "the whole model" when only the norm
// overflowed.
absl::StatusOr<std::string> FirstNonFinite(comm::Group& group, const plan::ParamLayout& layout,
                                           const ReducedRanges& reduced,
                                           const ReducedGradient& gradient);

// Collective: the least of the ranks' places of a gradient that is not finite.
absl::StatusOr<int64_t> LeastOfRanks(comm::Group& group, int64_t first);

}  // namespace dtrain
