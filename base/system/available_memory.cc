#include "base/system/available_memory.h"

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
  const char* limit;
  const char* used;
  const char* inactive;  // Fields of memory.stat: file cache.
  const char* active;
  const char* slab;  // Reclaimable kernel memory, such as cached file names; null: not reported.
};
constexpr CgroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                   "total_inactive_file", "total_active_file", nullptr};
constexpr CgroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file", "active_file",
                                   "slab_reclaimable"};

// Lowers `memory` to the rest of a cgroup's limit, if that is less.
void TakeTighter(const CgroupFolder& cgroup, AvailableMemory& memory) {
  // Version 1 has a number above this for "no limit".
  constexpr int64_t kUnlimited = int64_t{1} << 60;
  const CgroupFiles& files = cgroup.version == 2 ? kVersion2 : kVersion1;
  const auto limit = Number(absl::StrCat(cgroup.folder, "/", files.limit));
  const auto used = Number(absl::StrCat(cgroup.folder, "/", files.used));
  if (!limit.has_value() || !used.has_value() || *limit >= kUnlimited) {  // "max" is no number.
    return;
  }
  const std::string stat = ReadText(absl::StrCat(cgroup.folder, "/memory.stat"));
  const int64_t slab = files.slab == nullptr ? 0 : Field(stat, files.slab).value_or(0);
  const int64_t cache =
      Field(stat, files.inactive).value_or(0) + Field(stat, files.active).value_or(0) + slab;
  const int64_t available = std::max<int64_t>(0, *limit - std::max<int64_t>(0, *used - cache));
  if (available < memory.cgroup_bytes) {
    memory.cgroup_bytes = available;
    memory.cgroup_limit_bytes = *limit;
    memory.cgroup = std::hash<std::string>()(cgroup.path);
  }
}

}  // namespace

AvailableMemory ReadAvailableMemory(const SystemRoots& roots) {
  AvailableMemory memory;
  memory.machine = std::hash<std::string>()(ReadText(roots.proc + "/sys/kernel/random/boot_id"));
  const std::string meminfo = ReadText(roots.proc + "/meminfo");
  const auto kilobytes = Field(meminfo, "MemAvailable:");
  memory.machine_total_bytes = Field(meminfo, "MemTotal:").value_or(0) * 1024;
  memory.machine_bytes = kilobytes.has_value() ? *kilobytes * 1024 : kNoLimit;
  memory.cgroup_bytes = kNoLimit;
  // Containers see their own cgroup as "/", so their namespaces tell them apart.
  std::error_code none;
  const std::string space =
      std::filesystem::read_symlink(roots.proc + "/self/ns/cgroup", none).string();
  for (const CgroupFolder& cgroup : CgroupFolders("memory", roots)) {
    TakeTighter(cgroup, memory);
  }
  memory.cgroup ^= std::hash<std::string>()(space);
  return memory;
}

}  // namespace dtrain
