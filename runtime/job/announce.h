// The banner that a run begins with.
#pragma once

#include <cstdint>

#include "runtime/job/job_state.h"

namespace dtrain {

struct ModelSize {
  int64_t parameters = 0;
  int64_t trained = 0;
};

// Rank 0 says what this run is (runtime/plan/run_banner.h), once: the first engine's model is the
// run's. The record goes to the agent, or to this rank's own console.
void Announce(Job::State& state, const ModelSize& model);

// Once, when the first engine is made: rank 0 warns where its CPU multiplies slower in the types of
// the configuration than in fp32. The other ranks' CPUs are taken to be alike.
void WarnOfSlowProducts(Job::State& state);

// After the program's first step, once: rank 0 warns of groups of optimizer.param_groups that are
// for an engine which the program has not made, and of patterns of optimizer.no_weight_decay that
// name no parameter of its engines.
void CheckGroupEngines(Job::State& state);

}  // namespace dtrain
