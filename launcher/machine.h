// What `dtrain launch` must know of this node before it starts ranks, in microseconds and without
// libraries. `dtrain topo` has the full picture.
#pragma once

#include <string>
#include <vector>

namespace dtrain::launcher {

// Logical CPUs that this process may use, siblings of a core side by side, cores in NUMA order.
std::vector<int> UsableCpus();
// NVIDIA GPUs that the driver shows as /dev/nvidiaN.
int GpuCount();
std::string HostName();
// A port that is free on `host` at this moment; 0 when none could be bound.
int FreePort(const std::string& host);

}  // namespace dtrain::launcher
