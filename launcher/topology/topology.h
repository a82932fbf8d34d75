// The hardware of a node: cores, caches, NUMA nodes, the PCI tree, GPUs with NVLink, RDMA NICs.
// Plain values, filled by ReadTopology from this machine or from a file, and used by BindRanks,
// FormatTopology and the doctor. What the source does not hold stays unknown: an empty text, -1, 0
// where 0 is no value, or no value of an optional.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dl/nvml.h"
#include "base/system/cgroup.h"

namespace dtrain {
class Verbs;
}

namespace dtrain::launcher {

struct Core {
  int package = 0;  // -1: unknown.
  int numa = 0;
  std::vector<int> cpus;  // Logical CPUs (hardware threads) by the system's numbers.
};

struct Cache {
  int level = 0;
  std::string kind;  // "unified", "data" or "instruction".
  uint64_t bytes = 0;
  int line_bytes = 0;
  std::vector<int> cpus;  // Logical CPUs that share it.
};

struct NumaNode {
  int id = 0;
  uint64_t memory_bytes = 0;
  std::vector<int> cpus = {};  // Logical CPUs, those too that this process may not use.
};

// The kind of a processor as NCCL's topology files name it.
struct CpuKind {
  std::string arch;    // "x86_64".
  std::string vendor;  // "GenuineIntel".
  int family = -1;
  int model = -1;
};

// A device or bridge. Bridges come before what is behind them.
struct PciDevice {
  std::string address;            // "0000:1b:00.0".
  std::vector<std::string> path;  // Bridges from the root down, and the device itself.
  int class_code = -1;            // 0x030200: a GPU without a display.
  int vendor = -1;
  int device = -1;
  int subsystem_vendor = -1;
  int subsystem_device = -1;
  std::string link_speed;  // "32.0 GT/s PCIe".
  int link_width = -1;
  double link_gigabytes_per_s = 0;  // Hwloc's; 0: unknown.
  int numa = -1;
};

struct Gpu {
  int index = 0;  // NVML's index and, with CUDA_DEVICE_ORDER=PCI_BUS_ID, CUDA's.
  std::string name;
  std::string uuid;
  std::string pci;  // "0000:1b:00.0".
  int numa = -1;    // -1: the system does not say.
  uint64_t memory_bytes = 0;
  int compute_capability = 0;   // 90 for 9.0; 0: unknown.
  bool nvlinks_known = false;   // False: nothing says whether there are NVLinks.
  std::map<int, int> nvlinks;   // Active NVLinks by the GPU at the other end.
  int nvlinks_to_switches = 0;  // Active NVLinks to anything but a GPU of this node.
  std::map<std::string, int> nvlinks_by_switch;  // The same by PCI address of the other end.
  int nvlink_switch_class = -1;    // PCI class of what these addresses are; 0x068000: NVSwitches.
  std::optional<bool> gpu_direct;  // Whether NICs can reach its memory.
  std::vector<std::string> pci_path;  // Bridges from the root down, for distances.
  NvmlHealth health;
};

struct Gid {
  int index = 0;
  std::string gid;
  std::string type;    // "RoCE v2", "IB/RoCE v1"; "" when the system does not say.
  std::string netdev;  // The interface that it belongs to; "" for InfiniBand.
};

struct NicPort {
  int port = 1;
  std::string state;            // "ACTIVE", "DOWN", ...; "": unknown.
  std::string link_layer;       // "Ethernet" (RoCE) or "InfiniBand".
  double rate_gbps = 0;         // 0: unknown.
  std::vector<Gid> gids;        // Those that are set; empty and unreadable entries are left out.
  std::string phys_state = {};  // "LinkUp", "Polling", ...
  int mtu = 0;                  // The most bytes of a packet, by verbs; 0: unknown.
  std::map<std::string, uint64_t> errors = {};  // Error counters by the kernel's names.
};

struct Nic {
  std::string name;  // "mlx5_0"; "": unknown.
  std::string pci;
  std::string netdev;
  int netdev_mtu = 0;  // 0: no netdev.
  int numa = -1;
  std::string firmware;
  std::vector<NicPort> ports;
  std::vector<std::string> pci_path;
  std::string guid = {};   // The node's, as NCCL writes it: "0x64774a0003a1420c".
  int traffic_class = -1;  // The administrator's for RoCE, where Mellanox's driver shows it.

  // Whether a port is active, or may be.
  bool active() const;
};

struct Topology {
  std::string host;  // "": unknown.
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
  CpuKind cpu_kind = {};
  std::vector<Cache> caches = {};
  std::vector<PciDevice> pci = {};
  std::vector<std::string> interfaces = {};  // Network interfaces.
  std::string file = {};                     // The file or folder that was read; "": this machine.
};

struct TopologyOptions {
  std::string sysfs_root = "/sys";
  std::string proc_root = "/proc";
  // Instead of this machine's cores, for tests and for planning: hwloc's XML text or synthetic
  // description ("pack:2 numa:1 core:4 pu:2").
  std::string hwloc_xml;
  std::string hwloc_synthetic;
  Nvml* nvml = nullptr;          // Null: opened when the driver's library is there.
  const Verbs* verbs = nullptr;  // Null: ports have no MTU.
  bool read_gpus = true;
  bool read_pci = false;  // The PCI tree of this machine too, which costs some milliseconds.
};

// Reads the node. Only a failure of hwloc is an error (Unavailable, InvalidArgument for bad XML); a
// missing driver or sysfs folder leaves its part empty, with a note.
absl::StatusOr<Topology> ReadTopology(const TopologyOptions& options = {});

// The node that a file or folder describes, and nothing of this machine. Errors name the path.
//   hwloc's XML (lstopo file.xml): cores, caches, PCI devices, what hwloc knows of GPUs and NICs.
absl::StatusOr<Topology> ReadHwlocFile(const std::string& path);
//   A folder with the content of another machine's /sys.
absl::StatusOr<Topology> ReadSysfsRoot(const std::string& path);

// Steps of ReadTopology that tests call alone.
std::vector<Nic> ReadNics(const std::string& sysfs_root, std::vector<std::string>* notes,
                          const Verbs* verbs = nullptr);

}  // namespace dtrain::launcher
