// The part of the topology that hwloc reads. No state; thread-safe. Internal to launcher/topology.
#pragma once

#include "absl/status/status.h"
#include "launcher/topology/topology.h"

namespace dtrain::launcher {

// Fills packages, cores (only those that this process may use), NUMA nodes and memory.
absl::Status ReadCpu(const TopologyOptions& options, Topology* topology);

}  // namespace dtrain::launcher
