// Units of ZeRO stage 3: which modules a program or its configuration names, and what follows for
// gradients.
#pragma once

#include "absl/status/statusor.h"
#include "dtrain/job.h"
#include "runtime/engine/build/shard_layout.h"
#include "runtime/gradients/gradient_sync.h"
#include "runtime/optimizer/engine_state.h"

namespace torch::nn {
class Module;
}

namespace dtrain {

// Collective: finds the units of `module` for `state`, and gives the leaf modules among them.
// InvalidArgument: a name that is none, or units that differ between ranks.
absl::StatusOr<LeafModules> TakeUnits(Job& job, torch::nn::Module& module, EngineState& state);

// Gradients of a unit are reduced together, when backward has passed it. REQUIRES: `state` and
// `gradients` live as long as the weights are gathered.
void ReduceByUnits(const EngineState& state, GradientSync& gradients);

}  // namespace dtrain
