// The order in which buckets of weights are updated and gathered at the end of a step: as the next
// forward needs them. Pure, so that all ranks that know the same reads enter the same collectives.
#pragma once

#include <vector>

#include "absl/types/span.h"

namespace dtrain::plan {

// Every one of `buckets` once: those of `reads` (as a forward read them; what comes again counts
// nothing), then what it did not read, from the last on, because the layout's end is what modules
// register, and mostly read, first. REQUIRES: reads are in [0, buckets).
std::vector<int> NeedOrder(int buckets, absl::Span<const int> reads);

}  // namespace dtrain::plan
