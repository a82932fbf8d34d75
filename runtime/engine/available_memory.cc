#include "runtime/engine/available_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace dtrain {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The number after the word `name` at the start of a line.
std::optional<int64_t> Field(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string word;
    int64_t number = 0;
    if (words >> word >> number && word == name) {
      return number;
    }
  }
  return std::nullopt;
}

std::optional<int64_t> Number(const std::string& path) {
  int64_t number = 0;
  return absl::SimpleAtoi(ReadText(path), &number) ? std::optional(number) : std::nullopt;
}

struct CgroupFiles {
  const char* root;
  const char* limit;
  const char* used;
  const char* inactive;  // Fields of memory.stat: file cache.
  const char* active;
};
constexpr CgroupFiles kVersion1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                   "memory.usage_in_bytes", "total_inactive_file",
                                   "total_active_file"};
constexpr CgroupFiles kVersion2 = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                   "inactive_file", "active_file"};

std::optional<int64_t> AvailableIn(const CgroupFiles& files, const std::string& path) {
  const std::string folder = absl::StrCat(files.root, path);
  const auto limit = Number(absl::StrCat(folder, "/", files.limit));
  const auto used = Number(absl::StrCat(folder, "/", files.used));
  if (!limit.has_value() || !used.has_value()) {  // "max" is no number.
    return std::nullopt;
  }
  const std::string stat = ReadText(absl::StrCat(folder, "/memory.stat"));
  const int64_t cache =
      Field(stat, files.inactive).value_or(0) + Field(stat, files.active).value_or(0);
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, *used - cache));
}

// The tightest of a cgroup and those above it. In a container only the root may exist: its own.
void TakeTightest(const CgroupFiles& files, std::string path, plan::RankMemory& memory) {
  while (true) {
    const auto available = AvailableIn(files, path);
    if (available.has_value() && *available < memory.cgroup_available) {
      memory.cgroup_available = *available;
      memory.cgroup = std::hash<std::string>()(path);
    }
    if (path.size() <= 1) {
      return;
    }
    path.resize(std::max<size_t>(1, path.rfind('/')));
  }
}

}  // namespace

plan::RankMemory ReadRankMemory() {
  plan::RankMemory memory;
  memory.machine = std::hash<std::string>()(ReadText("/proc/sys/kernel/random/boot_id"));
  const auto kilobytes = Field(ReadText("/proc/meminfo"), "MemAvailable:");
  memory.machine_available = kilobytes.has_value() ? *kilobytes * 1024 : kNoLimit;
  memory.cgroup_available = kNoLimit;
  // Containers see their own cgroup as "/": their namespaces tell them apart.
  std::error_code none;
  const std::string space = std::filesystem::read_symlink("/proc/self/ns/cgroup", none).string();
  std::istringstream lines(ReadText("/proc/self/cgroup"));  // "4:memory:/path", "0::/path".
  std::string line;
  while (std::getline(lines, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controller = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controller.empty() || controller == "memory") {
      TakeTightest(controller.empty() ? kVersion2 : kVersion1, path, memory);
    }
  }
  memory.cgroup ^= std::hash<std::string>()(space);
  return memory;
}

absl::StatusOr<plan::RankMemory> ReadDeviceMemory(const Device& device) {
  comm::CudaApi& api = device.api();
  comm::CudaDeviceFacts facts;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  DT_RETURN_IF_ERROR(
      device.Check(api.DeviceFacts(device.place().index, &facts), "cudaGetDeviceProperties"));
  DT_RETURN_IF_ERROR(device.Check(api.MemoryInfo(&free_bytes, &total_bytes), "cudaMemGetInfo"));
  plan::RankMemory memory;
  memory.machine = std::hash<std::string>()(std::string(facts.uuid.begin(), facts.uuid.end()));
  memory.machine_available = static_cast<int64_t>(free_bytes);
  memory.cgroup_available = kNoLimit;
  return memory;
}

absl::StatusOr<double> LeastAvailable(comm::Group& group, const plan::RankMemory& mine) {
  plan::RankMemory sent = mine;
  std::vector<plan::RankMemory> all(static_cast<size_t>(group.size()));
  DT_ASSIGN_OR_RETURN(const comm::Work work,
                      group.AllGather({&sent, sizeof(sent), DType::kUInt8, {}},
                                      {all.data(), all.size() * sizeof(sent), DType::kUInt8, {}},
                                      {.name = "available memory", .caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  return plan::LeastAvailable(all);
}

}  // namespace dtrain
