// VerbsApi over this host's libibverbs, which is opened on first use. Devices and queue pairs are
// used by one thread at a time.
#pragma once

#include <memory>
#include <string>

#include "base/dl/verbs.h"
#include "comm/transport/rdma/verbs_api.h"

namespace dtrain::comm {

// The process's only instance; thread-safe. A host without the library gets NotFound from Ports.
VerbsApi& RealVerbs();

// Wraps `pair`, as RealVerbs' devices do, and destroys it through `verbs`; also the seam for tests.
// REQUIRES: `verbs` outlives the queue pair.
std::unique_ptr<QueuePair> TakeQueuePair(const VerbsFunctions& verbs, ibv_qp* pair);
// The same for an open device, which is closed in the end.
absl::StatusOr<std::unique_ptr<VerbsDevice>> TakeDevice(const VerbsFunctions& verbs,
                                                        ibv_context* context,
                                                        const std::string& name, int port,
                                                        int completions_max);

}  // namespace dtrain::comm
