#include "launcher/topology/read_cpu.h"

#include <hwloc.h>

#include <cerrno>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "launcher/topology/read_pci.h"

namespace dtrain::launcher {
namespace {

struct Destroy {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Handle = std::unique_ptr<hwloc_topology, Destroy>;

absl::StatusOr<Handle> Load(const TopologyOptions& options) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) {
    return absl::UnavailableError("hwloc_topology_init failed");
  }
  Handle handle(raw);
  if (!options.hwloc_xml.empty() &&
      hwloc_topology_set_xmlbuffer(raw, options.hwloc_xml.c_str(),
                                   static_cast<int>(options.hwloc_xml.size() + 1)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("hwloc cannot read the XML topology of ", options.hwloc_xml.size(), " bytes"));
  }
  if (!options.hwloc_synthetic.empty() &&
      hwloc_topology_set_synthetic(raw, options.hwloc_synthetic.c_str()) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("hwloc cannot read the synthetic topology \"", options.hwloc_synthetic,
                     "\"; an example: \"pack:2 numa:1 core:4 pu:2\""));
  }
  if (options.read_pci) {
    // Hwloc's plugins would open CUDA, OpenCL and displays to name devices.
    for (const char* const plugin : {"cuda", "nvml", "opencl", "gl", "rsmi", "levelzero"}) {
      (void)hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, plugin);
    }
    (void)hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_ALL);
  }
  if (hwloc_topology_load(raw) != 0) {
    return absl::UnavailableError(
        absl::StrCat("hwloc_topology_load: ", ErrnoStatus(errno, "hwloc").message()));
  }
  return handle;
}

std::vector<int> CpusOf(hwloc_const_bitmap_t set) {
  std::vector<int> cpus;
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu)) {
    cpus.push_back(cpu);
  }
  return cpus;
}

std::string InfoText(hwloc_obj_t object, const char* name) {
  const char* const value = object == nullptr ? nullptr : hwloc_obj_get_info_by_name(object, name);
  return value == nullptr ? "" : value;
}

int InfoNumber(hwloc_obj_t object, const char* name) {
  int value = -1;
  return absl::SimpleAtoi(InfoText(object, name), &value) ? value : -1;
}

void ReadCaches(hwloc_topology_t raw, Topology* topology) {
  for (hwloc_obj_type_t type = HWLOC_OBJ_L1CACHE; type <= HWLOC_OBJ_L3ICACHE;
       type = static_cast<hwloc_obj_type_t>(type + 1)) {
    for (hwloc_obj_t object = nullptr;
         (object = hwloc_get_next_obj_by_type(raw, type, object)) != nullptr;) {
      const auto& attr = object->attr->cache;
      Cache cache;
      cache.level = static_cast<int>(attr.depth);
      cache.kind = attr.type == HWLOC_OBJ_CACHE_UNIFIED ? "unified"
                   : attr.type == HWLOC_OBJ_CACHE_DATA  ? "data"
                                                        : "instruction";
      cache.bytes = attr.size;
      cache.line_bytes = static_cast<int>(attr.linesize);
      cache.cpus = CpusOf(object->cpuset);
      topology->caches.push_back(std::move(cache));
    }
  }
}

void ReadCpuKind(hwloc_topology_t raw, Topology* topology) {
  const hwloc_obj_t package = hwloc_get_obj_by_type(raw, HWLOC_OBJ_PACKAGE, 0);
  topology->cpu_model = InfoText(package, "CPUModel");
  topology->cpu_kind.vendor = InfoText(package, "CPUVendor");
  topology->cpu_kind.family = InfoNumber(package, "CPUFamilyNumber");
  topology->cpu_kind.model = InfoNumber(package, "CPUModelNumber");
  topology->cpu_kind.arch = InfoText(hwloc_get_root_obj(raw), "Architecture");
}

void ReadNumaNodes(hwloc_topology_t raw, Topology* topology) {
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(raw, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    const uint64_t bytes = node->attr->numanode.local_memory;
    topology->numa_nodes.push_back({static_cast<int>(node->os_index), bytes, CpusOf(node->cpuset)});
    topology->memory_bytes += bytes;
  }
}

int NumaOf(hwloc_obj_t object) {
  const int first = object->nodeset == nullptr ? -1 : hwloc_bitmap_first(object->nodeset);
  return first < 0 ? 0 : first;
}

}  // namespace

int NumaOfDevice(hwloc_obj* object) {
  while (object != nullptr && object->nodeset == nullptr) {
    object = object->parent;
  }
  return object == nullptr || hwloc_bitmap_weight(object->nodeset) != 1
             ? -1
             : hwloc_bitmap_first(object->nodeset);
}

absl::Status ReadCpu(const TopologyOptions& options, Topology* topology) {
  DT_ASSIGN_OR_RETURN(const Handle handle, Load(options));
  hwloc_topology_t raw = handle.get();
  topology->packages = hwloc_get_nbobjs_by_type(raw, HWLOC_OBJ_PACKAGE);
  // A container may hide cores; then each processing unit counts as one.
  const bool has_cores = hwloc_get_nbobjs_by_type(raw, HWLOC_OBJ_CORE) > 0;
  const hwloc_obj_type_t kind = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  // The processing units that taskset, a cpuset cgroup or Slurm left to this process.
  const hwloc_bitmap_t usable = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(raw));
  const hwloc_bitmap_t bound = hwloc_bitmap_alloc();
  if (hwloc_topology_is_thissystem(raw) != 0 &&
      hwloc_get_cpubind(raw, bound, HWLOC_CPUBIND_PROCESS) == 0) {
    hwloc_bitmap_and(usable, usable, bound);
  }
  for (hwloc_obj_t object = nullptr;
       (object = hwloc_get_next_obj_by_type(raw, kind, object)) != nullptr;) {
    hwloc_bitmap_and(bound, object->cpuset, usable);
    Core core;
    core.cpus = CpusOf(bound);
    if (core.cpus.empty()) {
      continue;
    }
    const hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(raw, HWLOC_OBJ_PACKAGE, object);
    core.package = package == nullptr ? 0 : static_cast<int>(package->logical_index);
    core.numa = NumaOf(object);
    topology->cores.push_back(std::move(core));
  }
  hwloc_bitmap_free(bound);
  hwloc_bitmap_free(usable);
  ReadNumaNodes(raw, topology);
  ReadCaches(raw, topology);
  ReadCpuKind(raw, topology);
  if (!options.hwloc_xml.empty()) {
    topology->host = InfoText(hwloc_get_root_obj(raw), "HostName");
  }
  if (options.read_pci) {
    ReadHwlocPci(raw, !options.hwloc_xml.empty(), topology);
  }
  if (topology->cores.empty()) {
    return absl::UnavailableError("hwloc finds no core that this process may use");
  }
  return absl::OkStatus();
}

}  // namespace dtrain::launcher
