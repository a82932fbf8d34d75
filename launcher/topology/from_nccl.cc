#include <algorithm>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/dl/nvml.h"
#include "base/file.h"
#include "base/status.h"
#include "launcher/topology/nccl_topology.h"
#include "launcher/topology/read_pci.h"
#include "launcher/topology/sysfs.h"

namespace dtrain::launcher {
namespace {

constexpr int kInfinibandClass = 0x0207;
constexpr int kEthernetClass = 0x0200;  // The PCI class of a NIC for RoCE.

class NcclReader {
 public:
  explicit NcclReader(const std::string& file) { topology_.file = file; }

  absl::StatusOr<Topology> Read(const NcclElement& root);

 private:
  // NVLinks whose far end is not known yet: the file names GPUs in any order.
  struct Link {
    size_t gpu = 0;
    std::string target;
    int count = 0;
    int target_class = -1;
  };

  absl::Status Bad(const NcclElement& element, absl::string_view attribute,
                   absl::string_view allowed) const;
  // -1: the attribute is not there.
  absl::StatusOr<int> Number(const NcclElement& element, absl::string_view attribute,
                             int max) const;
  absl::StatusOr<int> Hex(const NcclElement& element, absl::string_view attribute) const;
  absl::Status CheckHosts(const NcclElement& root) const;
  absl::Status ReadCpu(const NcclElement& element);
  absl::Status ReadPci(const NcclElement& element, int numa, std::vector<std::string> above);
  absl::Status ReadGpu(const NcclElement& element, const PciDevice& device);
  absl::Status ReadNets(const NcclElement& nic, const PciDevice& device);
  void ResolveLinks();
  void NumberGpus();

  Topology topology_;
  std::vector<Link> links_;
  std::set<std::string> addresses_;
};

absl::Status NcclReader::Bad(const NcclElement& element, absl::string_view attribute,
                             absl::string_view allowed) const {
  return absl::InvalidArgumentError(absl::StrFormat("%s: <%s %s=\"%s\">; allowed: %s",
                                                    topology_.file, element.name, attribute,
                                                    element.Value(attribute), allowed));
}

absl::StatusOr<int> NcclReader::Number(const NcclElement& element, absl::string_view attribute,
                                       int max) const {
  const std::string& text = element.Value(attribute);
  int value = -1;
  if (!text.empty() && (!absl::SimpleAtoi(text, &value) || value < -1 || value > max)) {
    return Bad(element, attribute, absl::StrCat("a number up to ", max));
  }
  return value;
}

absl::StatusOr<int> NcclReader::Hex(const NcclElement& element, absl::string_view attribute) const {
  const std::string& text = element.Value(attribute);
  uint32_t value = 0;
  if (!text.empty() && (!absl::SimpleHexAtoi(text, &value) || value > 0xffffff)) {
    return Bad(element, attribute, "up to six hexadecimal digits, such as 0x030200");
  }
  return text.empty() ? -1 : static_cast<int>(value);
}

absl::Status NcclReader::ReadGpu(const NcclElement& element, const PciDevice& device) {
  constexpr int kIndexMax = 4095;
  Gpu& gpu = topology_.gpus.emplace_back();
  gpu.pci = device.address;
  gpu.pci_path = device.path;
  gpu.numa = device.numa;
  gpu.nvlinks_known = true;
  DT_ASSIGN_OR_RETURN(gpu.index, Number(element, "dev", kIndexMax));
  DT_ASSIGN_OR_RETURN(const int capability, Number(element, "sm", 9999));
  gpu.compute_capability = std::max(capability, 0);
  DT_ASSIGN_OR_RETURN(const int direct, Number(element, "gdr", 1));
  if (direct >= 0) {
    gpu.gpu_direct = direct == 1;
  }
  for (const NcclElement& child : element.children) {
    if (child.name != "nvlink") {
      continue;
    }
    DT_ASSIGN_OR_RETURN(const int count, Number(child, "count", 1024));
    if (child.Value("target").empty() || count < 1) {
      return Bad(child, "count", "1 or more, with a target=\"ADDRESS\"");
    }
    DT_ASSIGN_OR_RETURN(const int target_class, Hex(child, "tclass"));
    links_.push_back(
        {topology_.gpus.size() - 1, NormalisePci(child.Value("target")), count, target_class});
  }
  return absl::OkStatus();
}

// A <net> of NCCL's plugin for RDMA has a GUID and a port from 1; one of plain sockets has neither.
absl::Status NcclReader::ReadNets(const NcclElement& nic, const PciDevice& device) {
  for (const NcclElement& net : nic.children) {
    if (net.name != "net") {
      continue;
    }
    DT_ASSIGN_OR_RETURN(const int number, Number(net, "port", 255));
    DT_ASSIGN_OR_RETURN(const int speed_mbps, Number(net, "speed", 100'000'000));
    const std::string& name = net.Value("name");
    if (name.empty() || name == "lo") {
      continue;
    }
    if (number <= 0) {
      topology_.interfaces.push_back(name);
      continue;
    }
    Nic& found = topology_.nics.emplace_back();
    found.name = name;
    found.pci = device.address;
    found.pci_path = device.path;
    found.numa = device.numa;
    found.guid = net.Value("guid");
    NicPort& port = found.ports.emplace_back();
    port.port = number;
    port.rate_gbps = std::max(speed_mbps, 0) / 1000.0;
    const int kind = device.class_code >> 8;
    port.link_layer = kind == kInfinibandClass ? "InfiniBand"
                      : kind == kEthernetClass ? "Ethernet"
                                               : "";
  }
  return absl::OkStatus();
}

absl::Status NcclReader::ReadPci(const NcclElement& element, int numa,
                                 std::vector<std::string> above) {
  PciDevice device;
  device.address = NormalisePci(element.Value("busid"));
  if (!IsPciAddress(device.address)) {
    return Bad(element, "busid", "a PCI address, such as 0000:1b:00.0");
  }
  if (!addresses_.insert(device.address).second) {
    return Bad(element, "busid", "each address once");
  }
  above.push_back(device.address);
  device.path = above;
  device.numa = numa;
  DT_ASSIGN_OR_RETURN(device.class_code, Hex(element, "class"));
  DT_ASSIGN_OR_RETURN(device.vendor, Hex(element, "vendor"));
  DT_ASSIGN_OR_RETURN(device.device, Hex(element, "device"));
  DT_ASSIGN_OR_RETURN(device.subsystem_vendor, Hex(element, "subsystem_vendor"));
  DT_ASSIGN_OR_RETURN(device.subsystem_device, Hex(element, "subsystem_device"));
  device.link_speed = element.Value("link_speed");
  DT_ASSIGN_OR_RETURN(device.link_width, Number(element, "link_width", 64));
  topology_.pci.push_back(device);
  const size_t gpus = topology_.gpus.size();
  const size_t nics = topology_.nics.size();
  for (const NcclElement& child : element.children) {
    if (child.name == "pci") {
      DT_RETURN_IF_ERROR(ReadPci(child, numa, above));
    } else if (child.name == "gpu") {
      DT_RETURN_IF_ERROR(ReadGpu(child, device));
    } else if (child.name == "nic") {
      DT_RETURN_IF_ERROR(ReadNets(child, device));
    }
  }
  const bool is_named = topology_.gpus.size() > gpus || topology_.nics.size() > nics;
  if (!is_named && IsNvidiaGpu(device)) {
    Gpu& gpu = topology_.gpus.emplace_back();
    gpu.index = -1;
    gpu.pci = device.address;
    gpu.pci_path = device.path;
    gpu.numa = numa;
  } else if (!is_named && device.class_code >> 8 == kInfinibandClass) {
    Nic& nic = topology_.nics.emplace_back();
    nic.pci = device.address;
    nic.pci_path = device.path;
    nic.numa = numa;
    nic.ports.emplace_back().link_layer = "InfiniBand";
  }
  return absl::OkStatus();
}

absl::Status NcclReader::CheckHosts(const NcclElement& root) const {
  std::set<std::string> hosts;
  for (const NcclElement& child : root.children) {
    hosts.insert(child.Value("host_hash"));
  }
  if (hosts.size() <= 1) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(topology_.file, " describes ", hosts.size(),
                   " hosts by their host_hash; allowed: one, so dump the topology of one node"));
}

absl::Status NcclReader::ReadCpu(const NcclElement& element) {
  constexpr int kNumaMax = 4095;
  NumaNode node;
  DT_ASSIGN_OR_RETURN(node.id, Number(element, "numaid", kNumaMax));
  for (const NumaNode& other : topology_.numa_nodes) {
    if (other.id == node.id) {
      return Bad(element, "numaid", "each NUMA node once");
    }
  }
  auto cpus = ParseCpuMask(element.Value("affinity"));
  if (!cpus.ok()) {
    return Bad(element, "affinity", "words of up to eight hexadecimal digits between commas");
  }
  node.cpus = *std::move(cpus);
  CpuKind& kind = topology_.cpu_kind;
  kind.arch = kind.arch.empty() ? element.Value("arch") : kind.arch;
  kind.vendor = kind.vendor.empty() ? element.Value("vendor") : kind.vendor;
  DT_ASSIGN_OR_RETURN(const int family, Number(element, "familyid", 65535));
  DT_ASSIGN_OR_RETURN(const int model, Number(element, "modelid", 65535));
  kind.family = std::max(kind.family, family);
  kind.model = std::max(kind.model, model);
  for (const int cpu : node.cpus) {
    topology_.cores.push_back({-1, node.id, {cpu}});
  }
  const PciDevice none{.numa = node.id};
  for (const NcclElement& child : element.children) {
    if (child.name == "pci") {
      DT_RETURN_IF_ERROR(ReadPci(child, node.id, {}));
    } else if (child.name == "nic") {
      DT_RETURN_IF_ERROR(ReadNets(child, none));
    }
  }
  if (node.id >= 0) {
    topology_.numa_nodes.push_back(std::move(node));
  }
  return absl::OkStatus();
}

void NcclReader::ResolveLinks() {
  for (const Link& link : links_) {
    Gpu& gpu = topology_.gpus[link.gpu];
    const auto peer = std::find_if(topology_.gpus.begin(), topology_.gpus.end(),
                                   [&link](const Gpu& other) { return other.pci == link.target; });
    if (link.target == gpu.pci) {
      topology_.notes.push_back(absl::StrCat("GPU ", gpu.index, ": the file has ", link.count,
                                             " NVLinks from it to itself; their far end is "
                                             "unknown"));
    } else if (peer != topology_.gpus.end()) {
      gpu.nvlinks[peer->index] += link.count;
    } else {
      gpu.nvlinks_to_switches += link.count;
      gpu.nvlinks_by_switch[link.target] += link.count;
      gpu.nvlink_switch_class = link.target_class;
    }
  }
}

// Where the file does not number all GPUs, they are in the order of their addresses, which is
// NVML's.
void NcclReader::NumberGpus() {
  std::vector<Gpu>& gpus = topology_.gpus;
  std::vector<size_t> order(gpus.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::set<int> indices;
  for (const Gpu& gpu : gpus) {
    indices.insert(gpu.index);
  }
  if (indices.count(-1) == 0 && indices.size() == gpus.size()) {
    return;
  }
  std::sort(order.begin(), order.end(),
            [&gpus](size_t a, size_t b) { return gpus[a].pci < gpus[b].pci; });
  for (size_t i = 0; i < order.size(); ++i) {
    gpus[order[i]].index = static_cast<int>(i);
  }
}

absl::StatusOr<Topology> NcclReader::Read(const NcclElement& root) {
  if (root.name != "system") {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: its root is <%s>; allowed: <system>, which a topology file of NCCL has "
        "(NCCL_TOPO_DUMP_FILE writes one)",
        topology_.file, root.name));
  }
  if (const std::string& version = root.Value("version"); version != "1" && version != "2") {
    return Bad(root, "version", "1 or 2");
  }
  DT_RETURN_IF_ERROR(CheckHosts(root));
  for (const NcclElement& child : root.children) {
    if (child.name == "cpu") {
      DT_RETURN_IF_ERROR(ReadCpu(child));
    }
  }
  NumberGpus();
  ResolveLinks();
  std::sort(topology_.gpus.begin(), topology_.gpus.end(),
            [](const Gpu& a, const Gpu& b) { return a.index < b.index; });
  std::sort(topology_.numa_nodes.begin(), topology_.numa_nodes.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  std::stable_sort(topology_.cores.begin(), topology_.cores.end(),
                   [](const Core& a, const Core& b) { return a.numa < b.numa; });
  if (!topology_.cores.empty()) {
    topology_.notes.push_back(
        "the file does not say which CPUs belong to one core: each counts as one");
  }
  topology_.packages = -1;
  return std::move(topology_);
}

}  // namespace

absl::StatusOr<Topology> FromNccl(const NcclElement& root, const std::string& file) {
  return NcclReader(file).Read(root);
}

absl::StatusOr<NcclElement> ReadNcclFile(const std::string& path) {
  constexpr size_t kBytesMax = 8U << 20;
  DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kBytesMax));
  return ParseNcclXml(text, path);
}

absl::StatusOr<std::vector<int>> ParseCpuMask(const std::string& mask) {
  constexpr size_t kWordsMax = 2048;
  const std::vector<std::string> words = absl::StrSplit(mask, ',', absl::SkipEmpty());
  std::vector<int> cpus;
  if (words.size() > kWordsMax) {
    return absl::InvalidArgumentError("too many words");
  }
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[words.size() - 1 - i];
    uint32_t bits = 0;
    if (word.size() > 8 || !absl::SimpleHexAtoi(word, &bits)) {
      return absl::InvalidArgumentError(absl::StrCat("\"", word, "\" is no hexadecimal word"));
    }
    for (int bit = 0; bit < 32; ++bit) {
      if ((bits >> bit & 1U) != 0) {
        cpus.push_back(static_cast<int>(i) * 32 + bit);
      }
    }
  }
  return cpus;
}

}  // namespace dtrain::launcher
