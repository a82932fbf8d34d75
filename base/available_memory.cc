#include "base/available_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace dtrain {
namespace {

constexpr int64_t kNoLimit = AvailableMemory::kNoLimit;

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
  const char* slab;  // Kernel memory that it gives up too, as of cached file names; null: not told.
};
constexpr CgroupFiles kVersion1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                   "memory.usage_in_bytes", "total_inactive_file",
                                   "total_active_file",     nullptr};
constexpr CgroupFiles kVersion2 = {"/sys/fs/cgroup", "memory.max",  "memory.current",
                                   "inactive_file",  "active_file", "slab_reclaimable"};

std::optional<int64_t> AvailableIn(const CgroupFiles& files, const std::string& path) {
  const std::string folder = absl::StrCat(files.root, path);
  const auto limit = Number(absl::StrCat(folder, "/", files.limit));
  const auto used = Number(absl::StrCat(folder, "/", files.used));
  if (!limit.has_value() || !used.has_value()) {  // "max" is no number.
    return std::nullopt;
  }
  const std::string stat = ReadText(absl::StrCat(folder, "/memory.stat"));
  const int64_t slab = files.slab == nullptr ? 0 : Field(stat, files.slab).value_or(0);
  const int64_t cache =
      Field(stat, files.inactive).value_or(0) + Field(stat, files.active).value_or(0) + slab;
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, *used - cache));
}

// The tightest of a cgroup and those above it. In a container only the root may exist: its own.
void TakeTightest(const CgroupFiles& files, std::string path, AvailableMemory& memory) {
  while (true) {
    const auto available = AvailableIn(files, path);
    if (available.has_value() && *available < memory.cgroup_bytes) {
      memory.cgroup_bytes = *available;
      memory.cgroup = std::hash<std::string>()(path);
    }
    if (path.size() <= 1) {
      return;
    }
    path.resize(std::max<size_t>(1, path.rfind('/')));
  }
}

}  // namespace

AvailableMemory ReadAvailableMemory() {
  AvailableMemory memory;
  memory.machine = std::hash<std::string>()(ReadText("/proc/sys/kernel/random/boot_id"));
  const auto kilobytes = Field(ReadText("/proc/meminfo"), "MemAvailable:");
  memory.machine_bytes = kilobytes.has_value() ? *kilobytes * 1024 : kNoLimit;
  memory.cgroup_bytes = kNoLimit;
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

}  // namespace dtrain
