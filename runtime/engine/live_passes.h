// Calls of an engine, in the course of a step, to all that gathers its weights, trained and frozen
// ones. Below ZeRO stage 3 nothing is gathered, and these do nothing.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/plan/layout/gather_schedule.h"

namespace dtrain {

// A step begins, from 1.
void SetStepOfLive(const EngineState& state, int64_t step);
// The reads that follow belong to a new pass, whichever part of the model the program reads first.
void BeginPass(const EngineState& state, plan::GatherSchedule::Pass pass);
// The forward of the pass is over.
void BeginBackwardPass(const EngineState& state);
// Its backward is over, or, in an evaluation, the batch.
void EndPass(const EngineState& state);
// First error of a gather that an operation waited for.
absl::Status LiveStatus(const EngineState& state);
// Weights that train are about to change: what is gathered of them is no longer theirs. Frozen ones
// stay.
absl::Status DropGathered(const EngineState& state);
// A step or an evaluation failed: drops what is gathered of all weights.
absl::Status DropAllGathered(const EngineState& state);
// Runs `function` while all weights are whole on every rank. Collective; throws what it throws.
absl::Status WithWholeWeights(const EngineState& state, absl::FunctionRef<void()> function);
// Seconds that operations waited for weights since the last call.
double TakeWaitedSeconds(const EngineState& state);

}  // namespace dtrain
