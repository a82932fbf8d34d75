// The reduced gradient on its way into a step journal and back: rounded to what the journal holds,
// so that a step and its replay update by the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/numeric/dtype.h"
#include "checkpoint/journal/segment_reader.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/optimizer/step_end.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain {

// Rounds all that this rank updates to `dtype` and leaves it in `gradient` in fp32. If `into` is
// not empty, it gets the elements of `stored` in `dtype`, one range after the other. REQUIRES:
// `stored` is a part of what the rank updates, in its order.
void RoundGradient(const EngineState& state, absl::Span<const plan::OwnedRange> stored, DType dtype,
                   const GradientMemory& gradient, absl::Span<std::byte> into);

// Fills what this rank updates from a step's journal, whoever wrote it. DataLoss: the files lack a
// part of it.
absl::Status ReadGradient(const EngineState& state,
                          absl::Span<const std::unique_ptr<checkpoint::SegmentReader>> files,
                          int64_t step, const GradientMemory& gradient);

}  // namespace dtrain
