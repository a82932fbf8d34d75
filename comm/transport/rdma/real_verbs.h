// VerbsApi over this host's libibverbs, which is opened on first use.
#pragma once

#include <memory>
#include <string>

#include "base/dl/verbs.h"
#include "comm/transport/rdma/verbs_api.h"

namespace dtrain::comm {

// The process's; thread-safe. A host without the library gets NotFound from Ports.
VerbsApi& RealVerbs();

// Takes `pair`, which it destroys through `verbs`: what RealVerbs' devices make, and the seam for
// tests. REQUIRES: `verbs` outlives the queue pair.
std::unique_ptr<QueuePair> TakeQueuePair(const VerbsFunctions& verbs, ibv_qp* pair);
// The same of an open device, which it closes.
absl::StatusOr<std::unique_ptr<VerbsDevice>> TakeDevice(const VerbsFunctions& verbs,
                                                        ibv_context* context,
                                                        const std::string& name, int port,
                                                        int completions_max);

}  // namespace dtrain::comm
