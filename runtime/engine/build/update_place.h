// Where an engine's optimizer runs and where its states live, by configuration, device and the
// optimizer that the program brings.
#pragma once

#include "absl/status/status.h"
#include "dtrain/job.h"
#include "runtime/offload/offload_options.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

// Where states and masters live: as zero_optimization.offload_optimizer says. A program's own
// optimizer has no CUDA form, so on a GPU its states are in the host's memory in any case.
OffloadOptions StateOffload(Job& job, const EngineState& state);

// Whether the host updates a GPU's weights.
bool UpdatesOnHost(Job& job, const EngineState& state);

// Unimplemented names what a GPU cannot do yet. Nothing is changed.
absl::Status CheckDevice(Job& job, const EngineState& state);

}  // namespace dtrain
