// Measures the costs of a group's links, once, when the group is created. Called by the thread that
// moves messages over the transport.
#pragma once

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "comm/transport/transport.h"

namespace dtrain::comm {

// Collective over the transport and blocking: milliseconds, or 1 MiB of each rank on a slow link.
// Every rank gets the same: the slowest rank's figures.
absl::StatusOr<LinkCost> ProbeLink(Transport& transport, const WaitContext& context);

}  // namespace dtrain::comm
