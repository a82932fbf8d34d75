// The facts of this node that `dtrain launch` needs to check its options, read in microseconds and
// without libraries. Thread-safe. launcher/topology/ has the full picture.
#pragma once

#include <string>

namespace dtrain::launcher {

// Logical CPUs that this process may use, within its CPU quota.
int CpuCount();
// NVIDIA GPUs that the driver shows as /dev/nvidiaN.
int GpuCount();
std::string HostName();
// A port that is free on `host` at this moment; 0 when none could be bound.
int FreePort(const std::string& host);

}  // namespace dtrain::launcher
