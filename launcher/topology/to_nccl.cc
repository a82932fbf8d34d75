#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launcher/topology/nccl_topology.h"
#include "launcher/topology/read_pci.h"

namespace dtrain::launcher {
namespace {

// The switches above a device, as NCCL nests them. In sysfs a switch is two bridges, its upstream
// port and the port to the device, and the root's port is above it.
std::vector<std::string> SwitchesAbove(const std::vector<std::string>& path) {
  std::vector<std::string> switches;
  if (path.empty() || !absl::StartsWith(path.front(), "pci")) {
    return {path.begin(), path.empty() ? path.end() : path.end() - 1};
  }
  for (size_t at = path.size() - 1; at >= 4; at -= 2) {
    switches.push_back(path[at - 2]);
  }
  std::reverse(switches.begin(), switches.end());
  return switches;
}

std::string HexText(int value, int digits) { return absl::StrFormat("0x%0*x", digits, value); }

NcclElement PciElement(const Topology& topology, const std::string& address) {
  NcclElement element{"pci", {{"busid", address}}, {}};
  const auto add = [&element](const char* name, int value, int digits) {
    if (value >= 0) {
      element.attributes.emplace_back(name, HexText(value, digits));
    }
  };
  const PciDevice* const device = FindPci(topology.pci, address);
  if (device == nullptr) {
    return element;
  }
  add("class", device->class_code, 6);
  add("vendor", device->vendor, 4);
  add("device", device->device, 4);
  add("subsystem_vendor", device->subsystem_vendor, 4);
  add("subsystem_device", device->subsystem_device, 4);
  if (!device->link_speed.empty()) {
    element.attributes.emplace_back("link_speed", device->link_speed);
  }
  if (device->link_width >= 0) {
    element.attributes.emplace_back("link_width", absl::StrCat(device->link_width));
  }
  return element;
}

// The element of the device with this path below `cpu`, made with its switches where needed.
NcclElement& PlaceOf(const Topology& topology, const std::vector<std::string>& path,
                     NcclElement* cpu) {
  std::vector<std::string> steps = SwitchesAbove(path);
  steps.push_back(path.back());
  NcclElement* place = cpu;
  for (const std::string& address : steps) {
    const auto found = std::find_if(
        place->children.begin(), place->children.end(),
        [&address](const NcclElement& child) { return child.Value("busid") == address; });
    if (found != place->children.end()) {
      place = &*found;
    } else {
      place->children.push_back(PciElement(topology, address));
      place = &place->children.back();
    }
  }
  return *place;
}

NcclElement LinkElement(const Topology& topology, const std::string& target, int count,
                        int target_class) {
  NcclElement link{"nvlink", {{"target", target}, {"count", absl::StrCat(count)}}, {}};
  const PciDevice* const device = FindPci(topology.pci, target);
  const int found = device == nullptr ? target_class : device->class_code;
  if (found >= 0) {
    link.attributes.emplace_back("tclass", HexText(found, 6));
  }
  return link;
}

NcclElement GpuElement(const Topology& topology, const Gpu& gpu) {
  NcclElement element{"gpu", {{"dev", absl::StrCat(gpu.index)}}, {}};
  if (gpu.compute_capability > 0) {
    element.attributes.emplace_back("sm", absl::StrCat(gpu.compute_capability));
  }
  if (gpu.gpu_direct.has_value()) {
    element.attributes.emplace_back("gdr", *gpu.gpu_direct ? "1" : "0");
  }
  for (const Gpu& peer : topology.gpus) {
    if (const auto count = gpu.nvlinks.find(peer.index); count != gpu.nvlinks.end()) {
      element.children.push_back(LinkElement(topology, peer.pci, count->second, -1));
    }
  }
  for (const auto& [address, count] : gpu.nvlinks_by_switch) {
    if (!address.empty()) {
      element.children.push_back(LinkElement(topology, address, count, gpu.nvlink_switch_class));
    }
  }
  return element;
}

NcclElement NicElement(const Nic& nic) {
  NcclElement element{"nic", {}, {}};
  for (const NicPort& port : nic.ports) {
    NcclElement net{"net", {{"name", nic.name}}, {}};
    if (port.rate_gbps > 0) {
      net.attributes.emplace_back("speed",
                                  absl::StrCat(static_cast<int64_t>(port.rate_gbps * 1000)));
    }
    net.attributes.emplace_back("port", absl::StrCat(port.port));
    if (!nic.guid.empty()) {
      net.attributes.emplace_back("guid", nic.guid);
    }
    element.children.push_back(std::move(net));
  }
  return element;
}

NcclElement CpuElement(const Topology& topology, const NumaNode& node, int cpu_max) {
  NcclElement cpu{"cpu", {{"numaid", absl::StrCat(node.id)}}, {}};
  const auto add = [&cpu](const char* name, const std::string& value) {
    if (!value.empty()) {
      cpu.attributes.emplace_back(name, value);
    }
  };
  const CpuKind& kind = topology.cpu_kind;
  add("affinity", node.cpus.empty() ? "" : FormatCpuMask(node.cpus, cpu_max));
  add("arch", kind.arch);
  add("vendor", kind.vendor);
  add("familyid", kind.family < 0 ? "" : absl::StrCat(kind.family));
  add("modelid", kind.model < 0 ? "" : absl::StrCat(kind.model));
  return cpu;
}

}  // namespace

NcclElement ToNccl(const Topology& topology) {
  NcclElement system{"system", {{"version", "1"}}, {}};
  int cpu_max = 0;
  for (const NumaNode& node : topology.numa_nodes) {
    for (const int cpu : node.cpus) {
      cpu_max = std::max(cpu_max, cpu);
    }
  }
  for (const NumaNode& node : topology.numa_nodes) {
    NcclElement cpu = CpuElement(topology, node, cpu_max);
    for (const Gpu& gpu : topology.gpus) {
      if (gpu.numa == node.id && !gpu.pci_path.empty()) {
        NcclElement& place = PlaceOf(topology, gpu.pci_path, &cpu);
        if (gpu.nvlinks_known) {
          place.children.push_back(GpuElement(topology, gpu));
        }
      }
    }
    for (const Nic& nic : topology.nics) {
      if (nic.numa == node.id && !nic.pci_path.empty()) {
        NcclElement& place = PlaceOf(topology, nic.pci_path, &cpu);
        if (!nic.name.empty() && !nic.ports.empty()) {
          place.children.push_back(NicElement(nic));
        }
      }
    }
    system.children.push_back(std::move(cpu));
  }
  return system;
}

std::string FormatCpuMask(const std::vector<int>& cpus, int cpu_max) {
  std::vector<uint32_t> words(static_cast<size_t>(cpu_max) / 32 + 1);
  for (const int cpu : cpus) {
    words.at(static_cast<size_t>(cpu) / 32) |= 1U << (cpu % 32);
  }
  std::string mask;
  for (size_t i = words.size(); i-- > 0;) {
    absl::StrAppendFormat(&mask, "%s%08x", mask.empty() ? "" : ",", words[i]);
  }
  return mask;
}

}  // namespace dtrain::launcher
