// How the running jobs of this host are, as the agents say. Blocks for some seconds at most.
// Thread-safe.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/json.h"
#include "launcher/jobs/job_registry.h"

namespace dtrain::launcher {

// How this host's agent describes its own ranks: "attempt", "world_size", "phase" and "ranks".
// Unavailable: it has none at the moment.
absl::StatusOr<Json> AskOwnNode(const JobFacts& job);

// The same of all nodes, as StatusJson gives it; of a job of one node, what its agent says.
absl::StatusOr<Json> AskJob(const JobFacts& job);

// How long all jobs together are waited for.
struct AskTimes {
  absl::Duration nodes = absl::Seconds(4);  // AskJob.
  absl::Duration own = absl::Seconds(2);    // Behind that, AskOwnNode of those that it fails for.
};

// What AskJob or else AskOwnNode gives of each job. All are asked at the same time, so that one
// whose agent hangs does not keep the others waiting.
std::vector<absl::StatusOr<Json>> AskJobs(absl::Span<const JobFacts> jobs,
                                          const AskTimes& times = {});

}  // namespace dtrain::launcher
