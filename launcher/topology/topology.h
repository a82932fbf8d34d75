// The hardware of a node: cores, NUMA nodes, GPUs with NVLink, RDMA NICs. Plain values, filled by
// ReadTopology and used by BindRanks, FormatTopology and the doctor.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/system/cgroup.h"

namespace dtrain {
class Nvml;
}

namespace dtrain::launcher {

struct Core {
  int package = 0;
  int numa = 0;
  std::vector<int> cpus;  // Logical CPUs (hardware threads) by the system's numbers.
};

struct NumaNode {
  int id = 0;
  uint64_t memory_bytes = 0;
};

struct Gpu {
  int index = 0;  // NVML's index and, with CUDA_DEVICE_ORDER=PCI_BUS_ID, CUDA's.
  std::string name;
  std::string uuid;
  std::string pci;  // "0000:1b:00.0".
  int numa = -1;    // -1: the system does not say.
  uint64_t memory_bytes = 0;
  std::map<int, int> nvlinks;         // Active NVLinks by the GPU at the other end.
  int nvlinks_to_switches = 0;        // Active NVLinks to anything but a GPU of this node.
  std::vector<std::string> pci_path;  // Bridges from the root down, for distances.
};

struct Gid {
  int index = 0;
  std::string gid;
  std::string type;    // "RoCE v2", "IB/RoCE v1"; "" when the system does not say.
  std::string netdev;  // The interface that it belongs to; "" for InfiniBand.
};

struct NicPort {
  int port = 1;
  std::string state;       // "ACTIVE", "DOWN", ...
  std::string link_layer;  // "Ethernet" (RoCE) or "InfiniBand".
  double rate_gbps = 0;
  std::vector<Gid> gids;  // Those that are set; empty and unreadable entries are left out.
};

struct Nic {
  std::string name;  // "mlx5_0".
  std::string pci;
  std::string netdev;
  int netdev_mtu = 0;  // 0: no netdev.
  int numa = -1;
  std::string firmware;
  std::vector<NicPort> ports;
  std::vector<std::string> pci_path;

  bool active() const;
};

struct Topology {
  std::string host;
  std::string cpu_model;
  int packages = 0;
  std::vector<Core> cores;  // In hwloc's order: neighbours share caches.
  std::vector<NumaNode> numa_nodes;
  uint64_t memory_bytes = 0;
  double cpu_quota = kNoCpuQuota;  // CPUs that this process may use (base/system/cgroup.h).
  std::string driver_version;      // Version of NVIDIA's driver; "" without one.
  int driver_cuda = 0;  // The newest CUDA that the driver supports (13000: 13.0); 0: unknown.
  std::vector<Gpu> gpus;
  std::vector<Nic> nics;
  std::vector<std::string> notes;  // Notes on parts that could not be read, and why.
};

struct TopologyOptions {
  std::string sysfs_root = "/sys";
  std::string proc_root = "/proc";
  // Instead of this machine's cores, for tests and for planning: hwloc's XML text or synthetic
  // description ("pack:2 numa:1 core:4 pu:2").
  std::string hwloc_xml;
  std::string hwloc_synthetic;
  Nvml* nvml = nullptr;  // Null: opened when the driver's library is there.
  bool read_gpus = true;
};

// Reads the node. Only a failure of hwloc is an error (Unavailable, InvalidArgument for bad XML); a
// missing driver or sysfs folder leaves its part empty, with a note.
absl::StatusOr<Topology> ReadTopology(const TopologyOptions& options = {});

// Steps of ReadTopology that tests call alone.
std::vector<Nic> ReadNics(const std::string& sysfs_root, std::vector<std::string>* notes);

enum class PciDistance { kSameSwitch, kSameRoot, kSameNuma, kFar };
// How far apart two PCI devices are, from their paths and NUMA nodes.
PciDistance DistanceBetween(const std::vector<std::string>& path_a, int numa_a,
                            const std::vector<std::string>& path_b, int numa_b);
// "PIX" (one switch), "PHB" (one root complex), "NODE", "SYS": as nvidia-smi topo -m names them.
const char* PciDistanceName(PciDistance distance);

}  // namespace dtrain::launcher
