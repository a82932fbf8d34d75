// How ranks make RDMA connections: each chooses a port, then they exchange the data of their ends
// over their authenticated TCP connections, connect, and try every connection once. If the ports
// nearest to the ranks do not reach each other, they try again with the ports that hold the ranks'
// addresses. One thread of each rank calls it; the result owns all connections.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "comm/rdma_options.h"
#include "comm/transport/rdma/gid.h"
#include "comm/transport/stream_transport.h"
#include "comm/transport/transport.h"

namespace dtrain::comm {

// InvalidArgument names the field, its value and range.
absl::Status CheckRdmaOptions(const RdmaOptions& options);

// The port that this rank would use. NotFound: why there is none. `address`: see PortWish.
absl::StatusOr<PortChoice> FindRdmaPort(const RdmaOptions& options, const std::string& address);

struct RdmaConnection {
  std::unique_ptr<Transport> transport;
  bool over_rdma = false;
};

// Collective and blocking; `address` is this rank's own. When one rank fails, all learn why; then
// the error names it, or, when RDMA is not `required`, all ranks go on over `mesh`, and rank 0 logs
// a warning if any rank has a port.
absl::StatusOr<RdmaConnection> ConnectRdma(std::unique_ptr<StreamTransport> mesh,
                                           const RdmaOptions& options, const std::string& address,
                                           bool required, Deadline deadline);

}  // namespace dtrain::comm
