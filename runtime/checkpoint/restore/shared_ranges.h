// The common parts of two buffers that each hold ranges of the layout in an order of their own:
// where a checkpoint's states belong in a rank that owns other ranges than the one that saved them.
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain {

// Elements from `from` on in the one buffer are those from `to` on in the other.
struct SharedRange {
  int64_t from = 0;
  int64_t to = 0;
  int64_t elements = 0;
  bool operator==(const SharedRange&) const = default;
};

// The common elements, in the layout's order. What follows one another in both buffers is one
// range. REQUIRES: neither list holds an element twice; else some may be left out.
std::vector<SharedRange> SharedRanges(absl::Span<const plan::OwnedRange> from,
                                      absl::Span<const plan::OwnedRange> to);

// The sum over the ranges.
int64_t ElementsOf(absl::Span<const plan::OwnedRange> ranges);
int64_t ElementsOf(absl::Span<const SharedRange> ranges);

}  // namespace dtrain
