// Between buffers that hold ranges of the layout, each in its own order.
#pragma once

#include "ATen/core/Tensor.h"
#include "absl/types/span.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain {

// Copies what both have from `source`, laid out as `stored`, to `target`, laid out as `owned`.
void CopyShared(const at::Tensor& source, absl::Span<const plan::OwnedRange> stored,
                const at::Tensor& target, absl::Span<const plan::OwnedRange> owned);

}  // namespace dtrain
