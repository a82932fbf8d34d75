#include "launcher/topology/distance.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace dtrain::launcher {
namespace {

bool NamesRoot(const std::vector<std::string>& path) {
  return !path.empty() && absl::StartsWith(path.front(), "pci");
}

// "0001" of "0001:00:00.0".
absl::string_view DomainOf(const std::vector<std::string>& path) {
  return path.empty() ? absl::string_view()
                      : absl::string_view(path.back()).substr(0, path.back().find(':'));
}

PciDistance ByNuma(const std::vector<std::string>& path_a, int numa_a,
                   const std::vector<std::string>& path_b, int numa_b) {
  if (numa_a < 0 || numa_b < 0) {
    return PciDistance::kUnknown;
  }
  if (numa_a != numa_b) {
    return PciDistance::kFar;
  }
  // A root belongs to one PCI domain, so devices of two domains have two roots.
  const bool two_roots = path_a.empty() || path_b.empty() ||
                         (NamesRoot(path_a) && NamesRoot(path_b)) ||
                         DomainOf(path_a) != DomainOf(path_b);
  return two_roots ? PciDistance::kSameNuma : PciDistance::kSameNumaAnyRoot;
}

}  // namespace

PciDistance DistanceBetween(const std::vector<std::string>& path_a, int numa_a,
                            const std::vector<std::string>& path_b, int numa_b) {
  size_t shared = 0;
  while (shared < path_a.size() && shared < path_b.size() && path_a[shared] == path_b[shared]) {
    ++shared;
  }
  const bool roots = NamesRoot(path_a) && NamesRoot(path_b);
  if (shared == 0) {
    return ByNuma(path_a, numa_a, path_b, numa_b);
  }
  if (roots && shared == 1) {
    return PciDistance::kSameRoot;
  }
  // Below the nearest bridge that both share. In a path of sysfs each device of a switch is behind
  // a port of its own, which belongs to that switch.
  const size_t longest = std::max(path_a.size(), path_b.size());
  const size_t below = longest > shared ? longest - shared - 1 : 0;
  return below <= (roots ? 1U : 0U) ? PciDistance::kSameSwitch : PciDistance::kSwitches;
}

const char* PciDistanceName(PciDistance distance) {
  switch (distance) {
    case PciDistance::kSameSwitch:
      return "PIX";
    case PciDistance::kSwitches:
      return "PXB";
    case PciDistance::kSameRoot:
      return "PHB";
    case PciDistance::kSameNumaAnyRoot:
      return "PHB/NODE";
    case PciDistance::kSameNuma:
      return "NODE";
    case PciDistance::kFar:
      return "SYS";
    case PciDistance::kUnknown:
      return "unknown";
  }
  return "?";
}

int NvlinksBetween(const Gpu& a, const Gpu& b) {
  const auto direct = a.nvlinks.find(b.index);
  return direct != a.nvlinks.end() ? direct->second
                                   : std::min(a.nvlinks_to_switches, b.nvlinks_to_switches);
}

std::string GpuConnection(const Gpu& a, const Gpu& b) {
  const int links = NvlinksBetween(a, b);
  return links > 0 ? absl::StrCat("NV", links)
                   : PciDistanceName(DistanceBetween(a.pci_path, a.numa, b.pci_path, b.numa));
}

std::string NicConnection(const Gpu& gpu, const Nic& nic) {
  return PciDistanceName(DistanceBetween(gpu.pci_path, gpu.numa, nic.pci_path, nic.numa));
}

std::string NicLabel(const Nic& nic) { return nic.name.empty() ? nic.pci : nic.name; }

std::vector<std::vector<std::string>> ConnectionMatrix(const Topology& topology) {
  std::vector<std::vector<std::string>> rows = {{""}};
  for (const Gpu& gpu : topology.gpus) {
    rows[0].push_back(absl::StrCat("GPU", gpu.index));
  }
  for (const Nic& nic : topology.nics) {
    rows[0].push_back(NicLabel(nic));
  }
  for (const Gpu& gpu : topology.gpus) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(absl::StrCat("GPU", gpu.index));
    for (const Gpu& other : topology.gpus) {
      row.push_back(&gpu == &other ? "X" : GpuConnection(gpu, other));
    }
    for (const Nic& nic : topology.nics) {
      row.push_back(NicConnection(gpu, nic));
    }
  }
  for (const Nic& nic : topology.nics) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(NicLabel(nic));
    for (const Gpu& gpu : topology.gpus) {
      row.push_back(NicConnection(gpu, nic));
    }
    for (const Nic& other : topology.nics) {
      row.push_back(&nic == &other ? "X"
                                   : PciDistanceName(DistanceBetween(nic.pci_path, nic.numa,
                                                                     other.pci_path, other.numa)));
    }
  }
  return rows;
}

}  // namespace dtrain::launcher
