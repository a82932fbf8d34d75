// How an engine's flat buffers are cut into buckets, padded and shared out. This follows from the
// job and the model alone, but for the device's granules of GPU memory.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtrain/job.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/plan/layout/shard_plan.h"
#include "runtime/plan/layout/units.h"

namespace dtrain {

// zero_optimization.leaf_module: classes or names of modules that are units.
using LeafModules = std::vector<std::string>;

// The flat buffers of the weights that train.
FlatOptions FlatOptionsOf(const Config& config, int world_size);

// How many elements may be live at ZeRO stage 3, of weights that train and of frozen ones. A leaf
// module is live as a whole, as with DeepSpeed, whatever the limit.
absl::StatusOr<plan::LiveShares> SharesOfLive(Job& job, const EngineState& state,
                                              const LeafModules& leaf_modules);

// ZeRO stages 1 to 3: the shard plans of `state`, for weights that train and for frozen ones.
// REQUIRES: their layouts and units are known.
absl::Status MakeShardPlans(Job& job, EngineState& state, const LeafModules& leaf_modules);

}  // namespace dtrain
