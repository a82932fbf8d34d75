// How far apart two devices of a node are, in the classes of `nvidia-smi topo -m`. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "launcher/topology/topology.h"

namespace dtrain::launcher {

// From near to far.
enum class PciDistance {
  kSameSwitch,       // PIX: at most one bridge in between, or one switch.
  kSwitches,         // PXB: several bridges, none of them the root's.
  kSameRoot,         // PHB: one root complex.
  kSameNumaAnyRoot,  // PHB or NODE: one NUMA node, and the source does not name the roots.
  kSameNuma,         // NODE: one NUMA node, different roots.
  kFar,              // SYS: different NUMA nodes.
  kUnknown,          // The source does not say.
};

// How far apart two PCI devices are, from their paths and NUMA nodes. A path that begins with a
// root
// ("pci0000:00") names each bridge, as sysfs does; another names the switches alone, as NCCL does.
PciDistance DistanceBetween(const std::vector<std::string>& path_a, int numa_a,
                            const std::vector<std::string>& path_b, int numa_b);

// "PIX", "PXB", "PHB", "PHB/NODE", "NODE", "SYS" or "unknown".
const char* PciDistanceName(PciDistance distance);

// Active NVLinks over which two GPUs reach each other: those between them, or, where both have
// links to switches, the fewer of these.
int NvlinksBetween(const Gpu& a, const Gpu& b);

// "NV18" if NVLinks join the GPUs, otherwise the name of their distance.
std::string GpuConnection(const Gpu& a, const Gpu& b);
std::string NicConnection(const Gpu& gpu, const Nic& nic);

// The name of the NIC, or its PCI address where the source does not name it.
std::string NicLabel(const Nic& nic);

// The table of `nvidia-smi topo -m`: each GPU and NIC to each. The first row and column are names.
std::vector<std::vector<std::string>> ConnectionMatrix(const Topology& topology);

}  // namespace dtrain::launcher
