#include <unistd.h>

#include <algorithm>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/dl/nvml.h"
#include "base/status.h"
#include "base/system/available_memory.h"
#include "base/system/cgroup.h"
#include "launcher/topology/read_cpu.h"
#include "launcher/topology/sysfs.h"
#include "launcher/topology/topology.h"

namespace dtrain::launcher {
namespace {

std::vector<Gid> ReadGids(const std::string& port_path) {
  std::vector<Gid> gids;
  for (const std::string& index : ListSysfs(absl::StrCat(port_path, "/gids"))) {
    const auto gid = ReadSysfs(absl::StrCat(port_path, "/gids/", index));
    const auto type = ReadSysfs(absl::StrCat(port_path, "/gid_attrs/types/", index));
    // A table has 16 to 256 entries, most of them zero; unset ones have no type.
    if (!gid.has_value() || gid->find_first_not_of("0:") == std::string::npos) {
      continue;
    }
    Gid found;
    if (!absl::SimpleAtoi(index, &found.index)) {
      continue;
    }
    found.gid = *gid;
    found.type = type.value_or("");
    found.netdev = ReadSysfs(absl::StrCat(port_path, "/gid_attrs/ndevs/", index)).value_or("");
    gids.push_back(std::move(found));
  }
  return gids;
}

NicPort ReadPort(const std::string& path, int number) {
  NicPort port;
  port.port = number;
  // Files hold texts such as "4: ACTIVE" and "400 Gb/sec (4X NDR)".
  const std::string state = ReadSysfs(path + "/state").value_or("");
  const size_t colon = state.find(": ");
  port.state = colon == std::string::npos ? state : state.substr(colon + 2);
  const std::string rate = ReadSysfs(path + "/rate").value_or("");
  (void)absl::SimpleAtod(rate.substr(0, rate.find(' ')), &port.rate_gbps);
  port.link_layer = ReadSysfs(path + "/link_layer").value_or("");
  port.gids = ReadGids(path);
  return port;
}

Nic ReadNic(const std::string& sysfs_root, const std::string& name) {
  const std::string path = absl::StrCat(sysfs_root, "/class/infiniband/", name);
  Nic nic;
  nic.name = name;
  nic.pci_path = PciPath(path + "/device");
  nic.pci = nic.pci_path.empty() ? "" : nic.pci_path.back();
  nic.numa = ReadSysfsInt(path + "/device/numa_node", -1);
  nic.firmware = ReadSysfs(path + "/fw_ver").value_or("");
  for (const std::string& number : ListSysfs(path + "/ports")) {
    int port = 0;
    if (absl::SimpleAtoi(number, &port)) {
      nic.ports.push_back(ReadPort(absl::StrCat(path, "/ports/", number), port));
    }
  }
  // The GIDs name the interface; for soft-RoCE, which has no PCI device, nothing else does.
  for (const NicPort& port : nic.ports) {
    for (const Gid& gid : port.gids) {
      nic.netdev = nic.netdev.empty() ? gid.netdev : nic.netdev;
    }
  }
  if (nic.netdev.empty()) {
    const auto netdevs = ListSysfs(path + "/device/net");
    nic.netdev = netdevs.empty() ? "" : netdevs.front();
  }
  if (!nic.netdev.empty()) {
    nic.netdev_mtu = ReadSysfsInt(absl::StrCat(sysfs_root, "/class/net/", nic.netdev, "/mtu"), 0);
  }
  return nic;
}

absl::Status ReadGpus(const TopologyOptions& options, Topology* topology) {
  std::unique_ptr<Nvml> opened;
  Nvml* nvml = options.nvml;
  if (nvml == nullptr) {
    DT_ASSIGN_OR_RETURN(opened, Nvml::Open());
    nvml = opened.get();
  }
  DT_ASSIGN_OR_RETURN(topology->driver_version, nvml->DriverVersion());
  topology->driver_cuda = nvml->CudaDriverVersion();
  DT_ASSIGN_OR_RETURN(const std::vector<NvmlGpu> gpus, nvml->Gpus());
  for (const NvmlGpu& seen : gpus) {
    Gpu gpu;
    gpu.index = seen.index;
    gpu.name = seen.name;
    gpu.uuid = seen.uuid;
    gpu.pci = seen.pci;
    gpu.memory_bytes = seen.memory_total_bytes;
    const std::string device = absl::StrCat(options.sysfs_root, "/bus/pci/devices/", gpu.pci);
    gpu.numa = ReadSysfsInt(device + "/numa_node", -1);
    gpu.pci_path = PciPath(device);
    for (const NvmlLink& link : seen.links) {
      const auto peer = std::find_if(gpus.begin(), gpus.end(), [&](const NvmlGpu& other) {
        return other.pci == link.remote_pci;
      });
      if (peer == gpus.end()) {
        ++gpu.nvlinks_to_switches;
      } else {
        ++gpu.nvlinks[peer->index];
      }
    }
    topology->gpus.push_back(std::move(gpu));
  }
  return absl::OkStatus();
}

// The memory size is that of /proc, with which memory is compared elsewhere too: if a machine's
// memory can grow, the sum over its NUMA nodes differs.
void ReadSystem(const SystemRoots& roots, Topology* topology) {
  topology->cpu_quota = CpuQuota(roots);
  const int64_t total = ReadAvailableMemory(roots).machine_total_bytes;
  if (total > 0) {
    topology->memory_bytes = static_cast<uint64_t>(total);
    if (topology->numa_nodes.size() == 1) {
      topology->numa_nodes[0].memory_bytes = topology->memory_bytes;
    }
  }
}

}  // namespace

bool Nic::active() const {
  return std::any_of(ports.begin(), ports.end(),
                     [](const NicPort& port) { return port.state == "ACTIVE"; });
}

std::vector<Nic> ReadNics(const std::string& sysfs_root, std::vector<std::string>* notes) {
  std::vector<Nic> nics;
  for (const std::string& name : ListSysfs(sysfs_root + "/class/infiniband")) {
    nics.push_back(ReadNic(sysfs_root, name));
    if (nics.back().ports.empty()) {
      notes->push_back(absl::StrCat("NIC ", name, ": its ports cannot be read"));
    }
  }
  return nics;
}

absl::StatusOr<Topology> ReadTopology(const TopologyOptions& options) {
  Topology topology;
  char host[256] = {};
  (void)gethostname(host, sizeof(host) - 1);
  topology.host = host;
  DT_RETURN_IF_ERROR(ReadCpu(options, &topology));
  if (options.hwloc_xml.empty() && options.hwloc_synthetic.empty()) {
    ReadSystem({.proc = options.proc_root, .cgroup = options.sysfs_root + "/fs/cgroup"}, &topology);
  }
  topology.nics = ReadNics(options.sysfs_root, &topology.notes);
  if (options.read_gpus) {
    const absl::Status gpus = ReadGpus(options, &topology);
    if (!gpus.ok()) {
      topology.notes.push_back(absl::StrCat("GPUs: ", gpus.message()));
    }
  }
  return topology;
}

PciDistance DistanceBetween(const std::vector<std::string>& path_a, int numa_a,
                            const std::vector<std::string>& path_b, int numa_b) {
  size_t shared = 0;
  while (shared < path_a.size() && shared < path_b.size() && path_a[shared] == path_b[shared]) {
    ++shared;
  }
  if (shared >= 2) {
    return PciDistance::kSameSwitch;  // They share at least one bridge below the root.
  }
  if (shared == 1) {
    return PciDistance::kSameRoot;
  }
  return numa_a >= 0 && numa_a == numa_b ? PciDistance::kSameNuma : PciDistance::kFar;
}

const char* PciDistanceName(PciDistance distance) {
  switch (distance) {
    case PciDistance::kSameSwitch:
      return "PIX";
    case PciDistance::kSameRoot:
      return "PHB";
    case PciDistance::kSameNuma:
      return "NODE";
    case PciDistance::kFar:
      return "SYS";
  }
  return "?";
}

}  // namespace dtrain::launcher
