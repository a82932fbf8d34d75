// Which parameter's gradient went bad.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "runtime/gradients/gradient_sync.h"
#include "runtime/plan/layout/layout.h"

namespace dtrain {

// Collective. The first parameter in backward's order (the layout's) whose reduced gradient holds
// an infinity or a NaN, so the one nearest to the loss; "the whole model" when only the norm
// overflowed.
absl::StatusOr<std::string> FirstNonFinite(comm::Group& group, const plan::ParamLayout& layout,
                                           const ReducedRanges& reduced,
                                           const ReducedGradient& gradient);

}  // namespace dtrain
