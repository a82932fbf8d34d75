// Authenticated TCP connections between all ranks of a group: two to each peer, one for data and
// one for the reason of a failure.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "comm/group.h"
#include "comm/net/store.h"
#include "comm/transport/transport.h"

namespace dtrain::comm {

// Collective and blocking: listens on options.host_address, publishes the port under `prefix` in
// the store, connects to the lower ranks and accepts the higher ones. `names` are for reports, by
// rank. FailedPrecondition when there is no job key to authenticate with.
absl::StatusOr<std::unique_ptr<Transport>> ConnectTcpMesh(Store& store, const GroupOptions& options,
                                                          const std::string& prefix,
                                                          std::vector<std::string> names,
                                                          Deadline deadline);

}  // namespace dtrain::comm
