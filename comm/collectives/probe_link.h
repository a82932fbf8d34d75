// Measures what a group's links cost, once, when it is created.
#pragma once

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "comm/transport/transport.h"

namespace dtrain::comm {

// Collective over the transport and blocking: milliseconds, or 1 MiB of each rank on a slow link.
// Every rank gets the same: the slowest rank's figures.
absl::StatusOr<LinkCost> ProbeLink(Transport& transport, const WaitContext& context);

}  // namespace dtrain::comm
