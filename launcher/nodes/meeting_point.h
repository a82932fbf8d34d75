// Where the nodes of a job meet: node 0's address and a port there, as flags and variables give it.
// Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace dtrain::launcher {

struct MeetingFlags {
  int nodes = 1;
  std::string nnodes;  // The value that was given, for messages.
  std::string endpoint;
  std::string endpoint_from;  // Who gives `endpoint`: a flag, or Slurm's variables.
  std::string master_addr;    // Used where there is no endpoint.
  std::string master_port;
};

// HOST:PORT or [IPV6]:PORT; "" for one node without an endpoint. InvalidArgument names the
// flag, its value and what is allowed. Several nodes need a host and a port that all of them know;
// one node meets nobody, so that it may leave out the port or ask for a free one (0), as with
// torchrun.
absl::StatusOr<std::string> MeetingPoint(const MeetingFlags& flags);

// The host of --master-addr, where an IPv6 address may stand in brackets. InvalidArgument: it is
// neither the name nor the address of one host.
absl::StatusOr<std::string> MasterHost(const std::string& address);

}  // namespace dtrain::launcher
