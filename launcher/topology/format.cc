#include "launcher/topology/format.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

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

std::string NumaText(int numa) { return numa < 0 ? "-" : absl::StrCat(numa); }

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
    rows.push_back({absl::StrCat(node.id), cores == 0 ? "-" : absl::StrCat(package),
                    absl::StrCat(cores), cpus.empty() ? "-" : FormatCpuList(cpus),
                    FormatBytes(node.memory_bytes)});
  }
  return Table(rows);
}

std::string GpuTable(const Topology& topology) {
  std::vector<std::vector<std::string>> rows = {{"GPU", "name", "PCI", "NUMA", "memory", "NVLink"}};
  for (const Gpu& gpu : topology.gpus) {
    std::vector<std::string> links;
    for (const auto& [peer, count] : gpu.nvlinks) {
      links.push_back(absl::StrFormat("NV%d to GPU %d", count, peer));
    }
    if (gpu.nvlinks_to_switches > 0) {
      links.push_back(absl::StrFormat("NV%d to switches", gpu.nvlinks_to_switches));
    }
    rows.push_back({absl::StrCat(gpu.index), gpu.name, gpu.pci, NumaText(gpu.numa),
                    FormatBytes(gpu.memory_bytes),
                    links.empty() ? "-" : absl::StrJoin(links, ", ")});
  }
  return Table(rows);
}

std::string NicTable(const Topology& topology) {
  std::vector<std::vector<std::string>> rows = {
      {"NIC", "port", "state", "rate", "link", "netdev", "MTU", "NUMA", "RoCE v2 GID", "to GPUs"}};
  for (const Nic& nic : topology.nics) {
    std::vector<std::string> distances;
    for (const Gpu& gpu : topology.gpus) {
      distances.emplace_back(
          PciDistanceName(DistanceBetween(gpu.pci_path, gpu.numa, nic.pci_path, nic.numa)));
    }
    for (const NicPort& port : nic.ports) {
      std::vector<std::string> gids;
      for (const Gid& gid : port.gids) {
        if (gid.type == "RoCE v2") {
          gids.push_back(absl::StrCat("#", gid.index));
        }
      }
      rows.push_back({nic.name, absl::StrCat(port.port), port.state,
                      absl::StrCat(port.rate_gbps, " Gb/s"),
                      port.link_layer == "Ethernet" ? "RoCE" : port.link_layer,
                      nic.netdev.empty() ? "-" : nic.netdev,
                      nic.netdev_mtu == 0 ? "-" : absl::StrCat(nic.netdev_mtu), NumaText(nic.numa),
                      gids.empty() ? "-" : absl::StrJoin(gids, " "),
                      distances.empty() ? "-" : absl::StrJoin(distances, " ")});
    }
  }
  return Table(rows);
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
  std::string text =
      absl::StrFormat("%s: %d cores, %s%s%s%s\n\n", topology.host, topology.cores.size(),
                      FormatQuota(topology.cpu_quota), FormatBytes(topology.memory_bytes),
                      topology.cpu_model.empty() ? "" : ", ", topology.cpu_model);
  absl::StrAppend(&text, CoreTable(topology), "\n");
  if (topology.gpus.empty()) {
    absl::StrAppend(&text, "  no GPU\n");
  } else {
    absl::StrAppend(&text, GpuTable(topology), "  NVIDIA driver ", topology.driver_version, "\n");
  }
  absl::StrAppend(&text, "\n", topology.nics.empty() ? "  no RDMA NIC\n" : NicTable(topology));
  for (const std::string& note : topology.notes) {
    absl::StrAppend(&text, "\n  note: ", note, "\n");
  }
  return text;
}

std::string FormatRankPlan(const Topology& topology, const RankPlan& plan) {
  std::vector<std::vector<std::string>> rows = {{"rank", "CPUs", "NUMA", "GPU", "NIC"}};
  for (const RankBinding& rank : plan.ranks) {
    rows.push_back({absl::StrCat(rank.local_rank),
                    rank.cpus.empty() ? "any" : FormatCpuList(rank.cpus), NumaText(rank.numa),
                    rank.gpu < 0 ? "-" : absl::StrCat(rank.gpu),
                    rank.nic.empty() ? "-" : rank.nic});
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
