// The part of a topology that hwloc finds, and the same of a copy of a /sys. Internal to
// launcher/topology.
#pragma once

#include "absl/status/status.h"
#include "launcher/topology/topology.h"

struct hwloc_obj;

namespace dtrain::launcher {

// Fills packages, cores, caches, NUMA nodes, memory and CPU model, and with options.read_pci the
// PCI tree: from this machine, or from the XML text or description in `options`. From an XML text
// also the host's name, GPUs and NICs.
absl::Status ReadCpu(const TopologyOptions& options, Topology* topology);

// The NUMA node beside which hwloc has found an I/O object; -1: beside several, or none.
int NumaOfDevice(hwloc_obj* object);

// Fills cores, caches, NUMA nodes and memory from a folder with the content of another machine's
// /sys. InvalidArgument names a file with a bad value.
absl::Status ReadSysfsCpu(const std::string& sysfs_root, Topology* topology);

}  // namespace dtrain::launcher
