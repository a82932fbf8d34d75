// The decisions of rank 0 at the start of a job, which it tells the others through the store: the
// configuration that all must have, and the run directory. Collective, before there is a group.
#pragma once

#include "absl/status/status.h"
#include "base/deadline.h"
#include "runtime/job/job_state.h"
#include "runtime/job/run_directory.h"

namespace dtrain {

// InvalidArgument names the first key whose value differs from rank 0's. Where the start is a fresh
// one, no rank goes on before all are sure.
absl::Status CompareConfigurations(Job::State& state, Deadline deadline);

// Rank 0 prepares the run directory; sets state.run_id on all ranks. Its error is that of all.
absl::Status TakeRunDirectory(Job::State& state, const RunDirectoryOptions& options,
                              Deadline deadline);

// For a rank that has no configuration: tells the others, which would wait for it until their
// timeout, and returns `reason`. Under dtrain's launcher its end alone ends them.
absl::Status SayWhyNot(Job::State& state, const absl::Status& reason);

}  // namespace dtrain
