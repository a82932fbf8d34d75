// The ranks of a job tell each other before it starts whether each of them can start.
//
// A rank that refuses to start (its configuration is another than rank 0's) would otherwise leave
// the others waiting for it in the group's creation until the connect timeout, where no launcher
// watches them.
#pragma once

#include "absl/status/status.h"
#include "base/deadline.h"
#include "comm/net/store.h"

namespace dtrain {

// Collective and blocking: OK, or the first error in rank order of what the ranks give as `mine`,
// naming its rank; a rank that has an error of its own gets that. Votes are read by rank 0 alone,
// so a start costs the others one wait; before an error rank 0, whose process may serve `store`,
// waits some seconds until the others know. DeadlineExceeded names the ranks that did not come.
// REQUIRES: once a job and attempt.
absl::Status AgreeToStart(comm::Store& store, int rank, int world_size, const absl::Status& mine,
                          Deadline deadline);

}  // namespace dtrain
