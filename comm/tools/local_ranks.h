// Runs a function as N ranks of this host: forked processes that meet through a store of their own.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "comm/group.h"

namespace dtrain::comm {

// A rank's function. `options` has rank, size, node, address and key of a group to create; `store`
// is where its ranks meet.
using RankFunction = std::function<absl::Status(const GroupOptions& options, Store& store)>;

// Blocks until all ranks have ended; the first that failed is reported by name. Ranks end with this
// process. REQUIRES: the calling process has one thread.
absl::Status RunLocalRanks(int ranks, const RankFunction& function);

}  // namespace dtrain::comm
