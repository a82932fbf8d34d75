// How a running job of this host is, as the agents say. Blocks for some seconds at most.
// Thread-safe.
#pragma once

#include "absl/status/statusor.h"
#include "base/json.h"
#include "launcher/jobs/job_registry.h"

namespace dtrain::launcher {

// How this host's agent describes its own ranks: "attempt", "world_size", "phase" and "ranks".
// Unavailable: it has none at the moment.
absl::StatusOr<Json> AskOwnNode(const JobFacts& job);

// The same of all nodes, as StatusJson gives it; of a job of one node, what its agent says.
absl::StatusOr<Json> AskJob(const JobFacts& job);

}  // namespace dtrain::launcher
