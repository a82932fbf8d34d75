// Reading of PCI trees, and of the GPUs and NICs in them. Internal to launcher/topology.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "launcher/topology/topology.h"

struct hwloc_topology;

namespace dtrain::launcher {

// The devices of a folder with the content of a /sys, bridges first.
std::vector<PciDevice> ReadSysfsPci(const std::string& sysfs_root);

// The devices of a topology of hwloc that was loaded with I/O objects, and the NICs that hwloc
// names there. With `add_nics` false, as where sysfs has them, only the devices.
void ReadHwlocPci(hwloc_topology* handle, bool add_nics, Topology* topology);

// Adds the GPUs of topology->pci that topology->gpus lacks, in the order of their addresses, which
// is NVML's.
void AddGpusOfTree(Topology* topology);

// Whether the class is that of a GPU, and no vendor but NVIDIA is named.
bool IsNvidiaGpu(const PciDevice& device);

// The device with this address; null: none.
const PciDevice* FindPci(const std::vector<PciDevice>& devices, absl::string_view address);

}  // namespace dtrain::launcher
