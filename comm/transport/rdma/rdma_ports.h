// The RDMA devices of this host and their ports, read through verbs and sysfs. Internal to the real
// twin of VerbsApi.
//
// The type and the network device of a GID are read from sysfs, which every kernel has. Containers
// may hide it; then the kernel is asked through the device (ibv_query_gid_table). No state;
// thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dl/verbs.h"
#include "comm/transport/rdma/verbs_api.h"

namespace dtrain::comm {

// All ports of all devices. A device that cannot be opened is listed as not active, with the reason
// as its state.
absl::StatusOr<std::vector<RdmaPort>> ReadPorts(const Verbs& verbs);

// The GIDs of a port in `folder` ("/sys/class/infiniband/rxe0/ports/1"), without empty ones.
std::vector<RdmaGid> ReadGids(const std::string& folder, int table_entries);

// The name of an ibv_port_state, such as "ACTIVE".
std::string PortStateName(int state);

// Why `bytes` could not be pinned, with the limit in force and what to do.
std::string CannotPin(size_t bytes, const std::string& limit);

}  // namespace dtrain::comm
