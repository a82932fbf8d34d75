#include <unistd.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/dl/nvml.h"
#include "base/file.h"
#include "base/status.h"
#include "base/system/available_memory.h"
#include "base/system/cgroup.h"
#include "launcher/topology/read_cpu.h"
#include "launcher/topology/read_pci.h"
#include "launcher/topology/sysfs.h"
#include "launcher/topology/topology.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kFileBytesMax = 64U << 20;

void TakeLinks(const std::vector<NvmlGpu>& gpus, const std::vector<NvmlLink>& links, Gpu* gpu) {
  gpu->nvlinks_known = true;
  for (const NvmlLink& link : links) {
    const auto peer = std::find_if(gpus.begin(), gpus.end(), [&](const NvmlGpu& other) {
      return other.pci == link.remote_pci;
    });
    if (peer == gpus.end()) {
      ++gpu->nvlinks_to_switches;
      ++gpu->nvlinks_by_switch[link.remote_pci];
    } else {
      ++gpu->nvlinks[peer->index];
    }
  }
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
    gpu.compute_capability = seen.compute_capability;
    gpu.health = seen.health;
    const std::string device = absl::StrCat(options.sysfs_root, "/bus/pci/devices/", gpu.pci);
    gpu.numa = ReadSysfsInt(device + "/numa_node", -1);
    gpu.pci_path = PciPath(device);
    TakeLinks(gpus, seen.links, &gpu);
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

// Where there is one NUMA node, the kernel may leave out that devices are near it.
void FillOnlyNuma(Topology* topology) {
  if (topology->numa_nodes.size() != 1) {
    return;
  }
  const int only = topology->numa_nodes[0].id;
  for (Gpu& gpu : topology->gpus) {
    gpu.numa = gpu.numa < 0 ? only : gpu.numa;
  }
  for (Nic& nic : topology->nics) {
    nic.numa = nic.numa < 0 && !nic.pci.empty() ? only : nic.numa;
  }
}

}  // namespace

bool Nic::active() const {
  return std::any_of(ports.begin(), ports.end(), [](const NicPort& port) {
    return port.state == "ACTIVE" || port.state.empty();
  });
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
  topology.nics = ReadNics(options.sysfs_root, &topology.notes, options.verbs);
  topology.interfaces = ListSysfs(options.sysfs_root + "/class/net");
  if (options.read_gpus) {
    const absl::Status gpus = ReadGpus(options, &topology);
    if (!gpus.ok()) {
      topology.notes.push_back(absl::StrCat("GPUs: ", gpus.message()));
    }
  }
  FillOnlyNuma(&topology);
  return topology;
}

absl::StatusOr<Topology> ReadHwlocFile(const std::string& path) {
  Topology topology;
  topology.file = path;
  TopologyOptions options;
  DT_ASSIGN_OR_RETURN(options.hwloc_xml, ReadFile(path, kFileBytesMax));
  options.read_pci = true;
  const absl::Status read = ReadCpu(options, &topology);
  if (!read.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is no topology that hwloc can read: ", read.message(),
                     "; write one by: lstopo --of xml FILE"));
  }
  AddGpusOfTree(&topology);
  FillOnlyNuma(&topology);
  return topology;
}

absl::StatusOr<Topology> ReadSysfsRoot(const std::string& path) {
  if (ListSysfs(path).empty()) {
    return absl::NotFoundError(
        absl::StrCat(path, " is no folder with the content of a /sys: it is empty or not there"));
  }
  Topology topology;
  topology.file = path;
  DT_RETURN_IF_ERROR(ReadSysfsCpu(path, &topology));
  topology.pci = ReadSysfsPci(path);
  topology.nics = ReadNics(path, &topology.notes);
  topology.interfaces = ListSysfs(path + "/class/net");
  AddGpusOfTree(&topology);
  FillOnlyNuma(&topology);
  return topology;
}

}  // namespace dtrain::launcher
