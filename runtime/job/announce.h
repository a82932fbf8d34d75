// The banner that a run begins with.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
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

// When the program's first step begins, and by then all engines for which it has settings are
// made. InvalidArgument names a group of optimizer.param_groups that is for no engine of the
// program, or a pattern of optimizer.no_weight_decay that names no parameter of any: the run would
// train with other settings than meant. Free after the first call that is OK.
absl::Status CheckGroupEngines(Job::State& state);

}  // namespace dtrain
