// The length of a run whose configuration gives it in epochs: known once the data are open. The
// program's own way to SetEpoch is Job::SetStepsPerEpoch.
#pragma once

#include "absl/status/status.h"
#include "dtrain/config.h"
#include "dtrain/job.h"

namespace dtrain {

// Collective where train_epochs is set, else nothing. An epoch takes that many steps, which need no
// whole number: the job's configuration, the run directory's records and the progress line get the
// train_steps that follow. InvalidArgument on all ranks where they give different numbers;
// FailedPrecondition where another number of steps is in force already.
absl::Status SetEpoch(Job& job, double steps_per_epoch);

// FailedPrecondition while train_epochs waits for SetEpoch: a schedule cannot be made.
absl::Status CheckLengthIsKnown(const Config& config);

}  // namespace dtrain
