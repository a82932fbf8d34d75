// Whether a training fits into the ranks' memory, before the engine allocates what is large. The
// same before its model is made is CheckModelFits (dtrain/construct.h).
#pragma once

#include "absl/status/status.h"
#include "dtrain/job.h"
#include "runtime/engine/build/shard_layout.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

// Collective: InvalidArgument on all ranks where the states do not fit on one of them. REQUIRES:
// the shard plans of `state` are made.
absl::Status CheckMemory(Job& job, const EngineState& state, const LeafModules& leaf_modules);

}  // namespace dtrain
