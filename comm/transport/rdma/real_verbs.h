// VerbsApi over this host's libibverbs, which is opened on first use.
#pragma once

#include "comm/transport/rdma/verbs_api.h"

namespace dtrain::comm {

// The process's; thread-safe. A host without the library gets NotFound from Ports.
VerbsApi& RealVerbs();

}  // namespace dtrain::comm
