// The facts of this node that `dtrain launch` needs to check its options, read in microseconds and
// without libraries. Thread-safe. launcher/topology/ has the full picture.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace dtrain::launcher {

// Logical CPUs that this process may use, within its CPU quota.
int CpuCount();
// NVIDIA GPUs that the driver shows as /dev/nvidiaN.
int GpuCount();
std::string HostName();
// A port that is free on `host` at this moment; 0 when none could be bound.
int FreePort(const std::string& host);
// "127.0.0.1 (lo), 10.0.0.1 (eth0)".
std::string DescribeOwnAddresses();
// Whether this host can listen at `address`, a name or an address that `flag` gives.
// InvalidArgument names both, and the addresses that there are; Unavailable and DeadlineExceeded:
// the name service does not answer. A name may take up to 10 s, and a thread of its own.
absl::Status CheckOwnAddress(absl::string_view flag, const std::string& address);

}  // namespace dtrain::launcher
