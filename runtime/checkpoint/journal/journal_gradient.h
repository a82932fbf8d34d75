// The reduced gradient on its way back from a step journal, to the host or to a GPU
// (journal_update.h has the way there).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "checkpoint/journal/segment_reader.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/optimizer/step_end.h"

namespace dtrain {

// Fills what this rank updates from a step's journal, whoever wrote it. DataLoss: the files lack a
// part of it.
absl::Status ReadGradient(const EngineState& state,
                          absl::Span<const std::unique_ptr<checkpoint::SegmentReader>> files,
                          int64_t step, const GradientMemory& gradient);

}  // namespace dtrain
