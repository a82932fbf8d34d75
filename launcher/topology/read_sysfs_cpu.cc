#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "launcher/topology/read_cpu.h"
#include "launcher/topology/sysfs.h"

namespace dtrain::launcher {
namespace {

constexpr const char* kCpuFolder = "/devices/system/cpu";
constexpr const char* kNodeFolder = "/devices/system/node";

// The number in a name such as "cpu12"; -1: another name.
int NumberBehind(absl::string_view prefix, absl::string_view name) {
  int number = -1;
  return absl::ConsumePrefix(&name, prefix) && absl::SimpleAtoi(name, &number) ? number : -1;
}

// A file that is not there is an empty list.
absl::StatusOr<std::vector<int>> ReadCpuListFile(const std::string& path) {
  auto cpus = ParseCpuList(ReadSysfs(path).value_or(""));
  return cpus.ok() ? cpus : Annotate(cpus.status(), path);
}

// "32768K".
uint64_t ReadSizeFile(const std::string& path) {
  const std::string text = ReadSysfs(path).value_or("");
  uint64_t kilobytes = 0;
  return !text.empty() && text.back() == 'K' &&
                 absl::SimpleAtoi(text.substr(0, text.size() - 1), &kilobytes)
             ? kilobytes << 10
             : 0;
}

// "Node 0 MemTotal:  1024 kB", the first line of a node's meminfo.
uint64_t ReadNodeMemory(const std::string& path) {
  for (const absl::string_view line : absl::StrSplit(ReadSysfs(path).value_or(""), '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t kilobytes = 0;
    if (words.size() >= 4 && words[2] == "MemTotal:" && absl::SimpleAtoi(words[3], &kilobytes)) {
      return kilobytes << 10;
    }
  }
  return 0;
}

absl::Status ReadNodes(const std::string& root, std::map<int, int>* numa_of_cpu,
                       Topology* topology) {
  for (const std::string& name : ListSysfs(root + kNodeFolder)) {
    const int id = NumberBehind("node", name);
    if (id < 0) {
      continue;
    }
    const std::string path = absl::StrCat(root, kNodeFolder, "/", name);
    NumaNode node{id, ReadNodeMemory(path + "/meminfo"), {}};
    DT_ASSIGN_OR_RETURN(node.cpus, ReadCpuListFile(path + "/cpulist"));
    for (const int cpu : node.cpus) {
      (*numa_of_cpu)[cpu] = id;
    }
    topology->memory_bytes += node.memory_bytes;
    topology->numa_nodes.push_back(std::move(node));
  }
  std::sort(topology->numa_nodes.begin(), topology->numa_nodes.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  return absl::OkStatus();
}

// Each cache has a folder below every CPU that shares it.
absl::Status ReadCachesOf(const std::string& path,
                          std::set<std::tuple<int, std::string, std::vector<int>>>* known,
                          Topology* topology) {
  for (const std::string& index : ListSysfs(path + "/cache")) {
    const std::string folder = absl::StrCat(path, "/cache/", index);
    Cache cache;
    cache.level = ReadSysfsInt(folder + "/level", 0);
    cache.bytes = ReadSizeFile(folder + "/size");
    if (cache.level == 0 || cache.bytes == 0) {
      continue;
    }
    const std::string type = ReadSysfs(folder + "/type").value_or("");
    cache.kind = type == "Data" ? "data" : type == "Instruction" ? "instruction" : "unified";
    cache.line_bytes = ReadSysfsInt(folder + "/coherency_line_size", 0);
    DT_ASSIGN_OR_RETURN(cache.cpus, ReadCpuListFile(folder + "/shared_cpu_list"));
    if (known->insert({cache.level, cache.kind, cache.cpus}).second) {
      topology->caches.push_back(std::move(cache));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadSysfsCpu(const std::string& sysfs_root, Topology* topology) {
  std::map<int, int> numa_of_cpu;
  DT_RETURN_IF_ERROR(ReadNodes(sysfs_root, &numa_of_cpu, topology));
  std::vector<int> cpus;
  for (const std::string& name : ListSysfs(sysfs_root + kCpuFolder)) {
    if (const int cpu = NumberBehind("cpu", name); cpu >= 0) {
      cpus.push_back(cpu);
    }
  }
  std::sort(cpus.begin(), cpus.end());
  std::set<int> packages;
  std::map<std::pair<int, int>, Core> cores;  // By package and number of the core.
  std::set<std::tuple<int, std::string, std::vector<int>>> caches;
  for (const int cpu : cpus) {
    const std::string path = absl::StrCat(sysfs_root, kCpuFolder, "/cpu", cpu);
    const int package = ReadSysfsInt(path + "/topology/physical_package_id", -1);
    const int number = ReadSysfsInt(path + "/topology/core_id", -1);
    if (number < 0) {
      continue;  // The CPU is off line.
    }
    Core& core = cores[{package, number}];
    core.package = package;
    const auto numa = numa_of_cpu.find(cpu);
    core.numa = numa == numa_of_cpu.end() ? 0 : numa->second;
    core.cpus.push_back(cpu);
    packages.insert(package);
    DT_RETURN_IF_ERROR(ReadCachesOf(path, &caches, topology));
  }
  topology->packages = static_cast<int>(packages.size());
  for (auto& [place, core] : cores) {
    topology->cores.push_back(std::move(core));
  }
  std::sort(topology->caches.begin(), topology->caches.end(), [](const Cache& a, const Cache& b) {
    return std::tie(a.level, a.kind, a.cpus) < std::tie(b.level, b.kind, b.cpus);
  });
  if (topology->cores.empty()) {
    topology->notes.push_back(
        absl::StrCat("cores: ", sysfs_root, kCpuFolder, " has none: they are unknown"));
  }
  return absl::OkStatus();
}

}  // namespace dtrain::launcher
