#include "launcher/topology/format.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "launcher/topology/distance.h"
#include "launcher/topology/read_pci.h"

namespace dtrain::launcher {
namespace {

// Rows as columns padded to the widest cell, two spaces apart, each line indented by two.
std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, " ", row[i], std::string(widths[i] - row[i].size() + 1, ' '));
    }
    absl::StrAppend(&text, line.substr(0, line.find_last_not_of(' ') + 1), "\n");
  }
  return text;
}

constexpr const char* kUnknown = "unknown";

std::string OrUnknown(const std::string& text) { return text.empty() ? kUnknown : text; }

std::string NumberText(int value) { return value < 0 ? kUnknown : absl::StrCat(value); }

std::string SizeText(uint64_t bytes) { return bytes == 0 ? kUnknown : FormatBytes(bytes); }

template <typename Value>
std::string OptionalText(const std::optional<Value>& value) {
  return value.has_value() ? absl::StrCat(*value) : kUnknown;
}

std::string CoreTable(const Topology& topology) {
  std::vector<std::vector<std::string>> rows = {{"NUMA", "package", "cores", "CPUs", "memory"}};
  for (const NumaNode& node : topology.numa_nodes) {
    std::vector<int> cpus;
    int cores = 0;
    int package = 0;
    for (const Core& core : topology.cores) {
      if (core.numa == node.id) {
        cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
        package = core.package;
        ++cores;
      }
    }
    rows.push_back({absl::StrCat(node.id), cores == 0 ? "-" : NumberText(package),
                    absl::StrCat(cores), cpus.empty() ? "-" : FormatCpuList(cpus),
                    SizeText(node.memory_bytes)});
  }
  return Table(rows);
}

// "L3 33.0 MiB x 2, each for 24 CPUs; ...", from the largest caches down.
std::string CacheText(const Topology& topology) {
  std::map<std::tuple<int, std::string, uint64_t, size_t>, int> counts;
  for (const Cache& cache : topology.caches) {
    ++counts[{-cache.level, cache.kind, cache.bytes, cache.cpus.size()}];
  }
  std::vector<std::string> texts;
  for (const auto& [cache, count] : counts) {
    const auto& [level, kind, bytes, cpus] = cache;
    texts.push_back(absl::StrFormat("L%d%s %s x %d, each for %d CPU%s", -level,
                                    kind == "data"          ? "d"
                                    : kind == "instruction" ? "i"
                                                            : "",
                                    FormatBytes(bytes), count, cpus, cpus == 1 ? "" : "s"));
  }
  return texts.empty() ? kUnknown : absl::StrJoin(texts, "; ");
}

std::string LinkText(const Gpu& gpu) {
  std::vector<std::string> links;
  for (const auto& [peer, count] : gpu.nvlinks) {
    links.push_back(absl::StrFormat("NV%d to GPU %d", count, peer));
  }
  if (gpu.nvlinks_to_switches > 0) {
    links.push_back(absl::StrFormat("NV%d to switches", gpu.nvlinks_to_switches));
  }
  return !links.empty() ? absl::StrJoin(links, ", ") : gpu.nvlinks_known ? "-" : kUnknown;
}

std::string GpuTable(const Topology& topology) {
  std::vector<std::vector<std::string>> rows = {
      {"GPU", "name", "PCI", "NUMA", "memory", "compute", "NVLink"}};
  for (const Gpu& gpu : topology.gpus) {
    const int capability = gpu.compute_capability;
    rows.push_back(
        {absl::StrCat(gpu.index), OrUnknown(gpu.name), gpu.pci, NumberText(gpu.numa),
         SizeText(gpu.memory_bytes),
         capability == 0 ? kUnknown : absl::StrCat(capability / 10, ".", capability % 10),
         LinkText(gpu)});
  }
  return Table(rows);
}

std::string PcieText(const std::optional<int>& generation, const std::optional<int>& width) {
  return generation.has_value() && width.has_value()
             ? absl::StrCat("gen ", *generation, " x", *width)
             : kUnknown;
}

std::string HealthTable(const Topology& topology) {
  std::vector<std::vector<std::string>> rows = {{"GPU", "C", "PCIe now", "PCIe at most",
                                                 "ECC errors", "rows remapped", "NVLinks down",
                                                 "NVLink errors", "throttled", "fabric"}};
  for (const Gpu& gpu : topology.gpus) {
    const NvmlHealth& health = gpu.health;
    std::string remapped = OptionalText(health.remapped_rows);
    absl::StrAppend(&remapped, health.remap_pending.value_or(false) ? ", pending" : "",
                    health.remap_failed.value_or(false) ? ", FAILED" : "");
    rows.push_back({absl::StrCat(gpu.index), OptionalText(health.temperature_c),
                    PcieText(health.pcie_generation, health.pcie_width),
                    PcieText(health.pcie_generation_max, health.pcie_width_max),
                    health.ecc_uncorrected.has_value()
                        ? absl::StrCat(*health.ecc_uncorrected, " uncorrected, ",
                                       OptionalText(health.ecc_corrected), " corrected")
                        : kUnknown,
                    remapped, OptionalText(health.nvlinks_down), OptionalText(health.nvlink_errors),
                    health.throttle_reasons.has_value()
                        ? absl::StrFormat("%#x", *health.throttle_reasons)
                        : kUnknown,
                    health.fabric_state.value_or(kUnknown)});
  }
  return Table(rows);
}

std::string ErrorText(const NicPort& port) {
  std::vector<std::string> errors;
  for (const auto& [name, count] : port.errors) {
    if (count > 0) {
      errors.push_back(absl::StrCat(name, " ", count));
    }
  }
  return port.errors.empty() ? kUnknown : errors.empty() ? "none" : absl::StrJoin(errors, ", ");
}

std::string NicTable(const Topology& topology) {
  std::vector<std::vector<std::string>> rows = {{"NIC", "port", "PCI", "state", "rate", "link",
                                                 "netdev", "MTU", "RDMA MTU", "NUMA", "errors"}};
  for (const Nic& nic : topology.nics) {
    for (const NicPort& port : nic.ports) {
      const std::string state = absl::StrCat(
          OrUnknown(port.state), port.phys_state.empty() ? "" : absl::StrCat("/", port.phys_state));
      rows.push_back({OrUnknown(nic.name), absl::StrCat(port.port), OrUnknown(nic.pci), state,
                      port.rate_gbps == 0 ? kUnknown : absl::StrCat(port.rate_gbps, " Gb/s"),
                      port.link_layer == "Ethernet" ? "RoCE" : OrUnknown(port.link_layer),
                      OrUnknown(nic.netdev),
                      nic.netdev_mtu == 0 ? kUnknown : absl::StrCat(nic.netdev_mtu),
                      port.mtu == 0 ? kUnknown : absl::StrCat(port.mtu), NumberText(nic.numa),
                      ErrorText(port)});
    }
  }
  return Table(rows);
}

// "" when no address is known.
std::string GidTable(const Topology& topology) {
  std::vector<std::vector<std::string>> rows = {
      {"NIC", "port", "GID", "type", "netdev", "address"}};
  for (const Nic& nic : topology.nics) {
    for (const NicPort& port : nic.ports) {
      for (const Gid& gid : port.gids) {
        rows.push_back({nic.name, absl::StrCat(port.port), absl::StrCat("#", gid.index),
                        OrUnknown(gid.type), gid.netdev.empty() ? "-" : gid.netdev, gid.gid});
      }
    }
  }
  return rows.size() == 1 ? "" : absl::StrCat("\n", Table(rows));
}

// Whether to show a device: GPUs, NICs, disks and NVSwitches. The others are many and far from
// data.
bool IsShown(const PciDevice& device) {
  const int kind = device.class_code >> 8;
  return IsNvidiaGpu(device) || kind == 0x0200 || kind == 0x0207 || kind == 0x0108 ||
         kind == 0x0680;
}

const char* KindOf(const PciDevice& device) {
  switch (device.class_code >> 8) {
    case 0x0200:
      return "Ethernet";
    case 0x0207:
      return "InfiniBand";
    case 0x0108:
      return "NVMe";
    case 0x0680:
      return "switch of NVLinks or other bridge";
    case 0x0604:
      return "bridge";
    default:
      return IsNvidiaGpu(device) ? "GPU" : "device";
  }
}

// The shown devices with the bridges above them, each behind its bridge.
std::string PciTree(const Topology& topology) {
  std::set<std::string> wanted;
  for (const PciDevice& device : topology.pci) {
    if (IsShown(device)) {
      wanted.insert(device.path.begin(), device.path.end());
    }
  }
  std::string text;
  std::string root;
  for (const PciDevice& device : topology.pci) {
    if (wanted.count(device.address) == 0) {
      continue;
    }
    if (device.path.front() != root && device.path.size() > 1) {
      absl::StrAppend(&text, "  ", device.path.front(), "\n");
    }
    root = device.path.front();
    const bool has_link = !device.link_speed.empty() && device.link_width > 0;
    absl::StrAppend(&text, std::string(2 * device.path.size(), ' '), device.address, " ",
                    KindOf(device),
                    has_link ? absl::StrCat(", ", device.link_speed, " x", device.link_width)
                    : device.link_gigabytes_per_s > 0
                        ? absl::StrFormat(", %.1f GB/s", device.link_gigabytes_per_s)
                        : "",
                    "\n");
  }
  return text;
}

std::string Devices(const Topology& topology) {
  std::string text;
  if (topology.gpus.empty()) {
    absl::StrAppend(&text, "  no GPU\n");
  } else {
    absl::StrAppend(&text, GpuTable(topology));
  }
  if (!topology.driver_version.empty()) {
    absl::StrAppend(&text, "  NVIDIA driver ", topology.driver_version, "\n\n",
                    HealthTable(topology));
  }
  absl::StrAppend(&text, "\n",
                  topology.nics.empty() ? "  no RDMA NIC\n"
                                        : absl::StrCat(NicTable(topology), GidTable(topology)));
  if (topology.gpus.size() + topology.nics.size() > 1) {
    absl::StrAppend(&text, "\n", Table(ConnectionMatrix(topology)));
  }
  return text;
}

}  // namespace

std::string FormatCpuList(std::vector<int> cpus) {
  std::sort(cpus.begin(), cpus.end());
  std::vector<std::string> runs;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) {
      ++last;
    }
    runs.push_back(last == i ? absl::StrCat(cpus[i]) : absl::StrCat(cpus[i], "-", cpus[last]));
    i = last + 1;
  }
  return absl::StrJoin(runs, ",");
}

std::string FormatBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string FormatQuota(double cpu_quota) {
  return cpu_quota == kNoCpuQuota ? "" : absl::StrFormat("a CPU quota of %.2f CPUs, ", cpu_quota);
}

std::string FormatTopology(const Topology& topology) {
  const bool is_file = !topology.file.empty();
  std::string text = absl::StrFormat(
      "%s%s: %d cores, %s%s%s%s\n\n", is_file ? absl::StrCat(topology.file, ", host ") : "",
      OrUnknown(topology.host), topology.cores.size(), FormatQuota(topology.cpu_quota),
      topology.memory_bytes == 0 ? "memory unknown" : FormatBytes(topology.memory_bytes),
      topology.cpu_model.empty() ? "" : ", ", topology.cpu_model);
  absl::StrAppend(&text, CoreTable(topology), "  caches: ", CacheText(topology), "\n\n",
                  Devices(topology));
  if (const std::string tree = PciTree(topology); !tree.empty()) {
    absl::StrAppend(&text, "\n", tree);
  }
  for (const std::string& note : topology.notes) {
    absl::StrAppend(&text, "\n  note: ", note, "\n");
  }
  return text;
}

std::string FormatSwitches(const SwitchTree& tree, const std::string& host) {
  std::string text;
  for (const Switch& each : tree.Walk()) {
    absl::StrAppend(&text, std::string(2 * static_cast<size_t>(each.depth) + 2, ' '), each.name,
                    each.nodes.empty() ? "" : ": ", absl::StrJoin(each.nodes, " "), "\n");
  }
  const std::string address = tree.AddressOf(host);
  absl::StrAppend(&text, "  this node: ",
                  address.empty() ? absl::StrCat(OrUnknown(host), " is not in the file")
                                  : absl::StrCat(address, ".", host),
                  "\n");
  return text;
}

std::string FormatTopologyConf(const SwitchTree& tree) {
  const std::vector<Switch> switches = tree.Walk();
  std::string text;
  for (const Switch& each : switches) {
    std::vector<std::string> below;
    for (const Switch& other : switches) {
      if (other.parent == each.name) {
        below.push_back(other.name);
      }
    }
    absl::StrAppend(
        &text, "SwitchName=", each.name,
        below.empty() ? "" : absl::StrCat(" Switches=", absl::StrJoin(below, ",")),
        each.nodes.empty() ? "" : absl::StrCat(" Nodes=", absl::StrJoin(each.nodes, ",")), "\n");
  }
  return text;
}

std::string FormatRankPlan(const Topology& topology, const RankPlan& plan) {
  std::vector<std::vector<std::string>> rows = {{"rank", "CPUs", "NUMA", "GPU", "NIC"}};
  for (const RankBinding& rank : plan.ranks) {
    rows.push_back({absl::StrCat(rank.local_rank),
                    rank.cpus.empty() ? "any" : FormatCpuList(rank.cpus), NumberText(rank.numa),
                    rank.gpu < 0 ? "-" : absl::StrCat(rank.gpu),
                    !rank.nic.empty()      ? rank.nic
                    : rank.nic_pci.empty() ? "-"
                                           : absl::StrCat("PCI ", rank.nic_pci)});
  }
  std::string text = Table(rows);
  if (plan.cores_shared) {
    absl::StrAppend(&text, "\n  note: ", plan.ranks.size(), " ranks share ", topology.cores.size(),
                    " cores: each step takes longer than with as many ranks as cores\n");
  }
  if (plan.cores_by_quota) {
    absl::StrAppend(&text, "\n  note: ", FormatQuota(topology.cpu_quota),
                    "ranks are not bound to cores, and each computes with ",
                    plan.ranks.front().cores,
                    plan.ranks.front().cores == 1 ? " thread" : " threads", "\n");
  }
  if (plan.gpus_shared) {
    absl::StrAppend(&text, "\n  note: ", plan.ranks.size(), " ranks share ", topology.gpus.size(),
                    " GPUs: NCCL cannot serve two ranks on one GPU\n");
  }
  return text;
}

std::string FormatFindings(const std::vector<Finding>& findings) {
  const auto mark = [](Verdict verdict) -> std::string {
    switch (verdict) {
      case Verdict::kOk:
        return "ok";
      case Verdict::kNote:
        return "-";
      case Verdict::kWarning:
        return "WARNING";
      case Verdict::kProblem:
        return "PROBLEM";
    }
    return "?";
  };
  std::vector<std::vector<std::string>> rows;
  for (const Finding& finding : findings) {
    rows.push_back({mark(finding.verdict), finding.name, finding.text});
    if (!finding.advice.empty()) {
      rows.push_back({"", "", absl::StrCat("-> ", finding.advice)});
    }
  }
  return Table(rows);
}

}  // namespace dtrain::launcher
