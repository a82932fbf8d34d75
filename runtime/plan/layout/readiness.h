// The order in which gradients became ready, as positions. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace dtrain::plan {

// Position of each of `entries` layout entries in `readiness` (their indices, first ready first);
// entries left out (unused parameters) follow in layout order. InvalidArgument: an index out of
// range or repeated.
absl::StatusOr<std::vector<int>> ReadinessPositions(size_t entries,
                                                    absl::Span<const int> readiness);

}  // namespace dtrain::plan
