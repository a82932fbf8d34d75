// Authenticated TCP connections between all ranks of a group: to each peer as many for data as the
// options say, and one for the reason of a failure. The resulting transport owns them. Called by
// one thread of each rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "comm/group.h"
#include "comm/net/store.h"
#include "comm/transport/stream_transport.h"

namespace dtrain::comm {

// The address at which peers reach this rank: from the options, or else the address that it uses
// towards the store. NotFound: there is no such network device.
absl::StatusOr<std::string> HostAddress(Store& store, const GroupOptions& options);

// Collective and blocking: listens on HostAddress, publishes the port under `prefix` in the store,
// connects to the lower ranks and accepts the higher ones. `names` are for reports, by rank.
// FailedPrecondition when there is no job key to authenticate with.
absl::StatusOr<std::unique_ptr<StreamTransport>> ConnectTcpMesh(Store& store,
                                                                const GroupOptions& options,
                                                                const std::string& prefix,
                                                                std::vector<std::string> names,
                                                                Deadline deadline);

}  // namespace dtrain::comm
