#include "base/system/cgroup.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"

namespace dtrain {
namespace {

std::string TextOf(const std::string& path) { return ReadFile(path).value_or(""); }

std::optional<double> NumberIn(absl::string_view text) {
  double number = 0;
  return absl::SimpleAtod(absl::StripAsciiWhitespace(text), &number) ? std::optional(number)
                                                                     : std::nullopt;
}

// The quota of one cgroup in CPUs; nothing without a quota ("max", or -1 in version 1).
std::optional<double> QuotaIn(const CgroupFolder& cgroup) {
  std::optional<double> quota;
  std::optional<double> period;
  if (cgroup.version == 2) {
    const std::string text = TextOf(cgroup.folder + "/cpu.max");  // "50000 100000".
    const std::vector<absl::string_view> words =
        absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
    if (words.size() == 2) {
      quota = NumberIn(words[0]);
      period = NumberIn(words[1]);
    }
  } else {
    quota = NumberIn(TextOf(cgroup.folder + "/cpu.cfs_quota_us"));
    period = NumberIn(TextOf(cgroup.folder + "/cpu.cfs_period_us"));
  }
  const bool is_set = quota.has_value() && period.has_value() && *quota > 0 && *period > 0;
  return is_set ? std::optional(*quota / *period) : std::nullopt;
}

// The count in one of the lines "NAME COUNT".
std::optional<int64_t> CountIn(absl::string_view text, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    int64_t count = 0;
    if (absl::ConsumePrefix(&line, name) && absl::ConsumePrefix(&line, " ") &&
        absl::SimpleAtoi(line, &count)) {
      return count;
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<CgroupFolder> CgroupFolders(absl::string_view controller, const SystemRoots& roots) {
  std::vector<CgroupFolder> folders;
  // "4:cpu,cpuacct:/path" of version 1, "0::/path" of version 2.
  const std::string text = TextOf(roots.proc + "/self/cgroup");
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() < 3) {
      continue;
    }
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    const bool is_version_2 = parts[1].empty();
    if (!is_version_2 && !absl::c_linear_search(controllers, controller)) {
      continue;
    }
    // Controllers that are mounted together have a folder with all their names, and a link for
    // each.
    std::string root = is_version_2 ? roots.cgroup : absl::StrCat(roots.cgroup, "/", controller);
    if (!is_version_2 && !FileExists(root)) {
      root = absl::StrCat(roots.cgroup, "/", parts[1]);
    }
    for (std::string path = parts[2];;) {
      folders.push_back({is_version_2 ? 2 : 1, path, root + path});
      if (path.size() <= 1) {
        break;
      }
      path.resize(std::max<size_t>(1, path.rfind('/')));
    }
  }
  return folders;
}

double CpuQuota(const SystemRoots& roots) {
  double tightest = kNoCpuQuota;
  for (const CgroupFolder& cgroup : CgroupFolders("cpu", roots)) {
    tightest = std::min(tightest, QuotaIn(cgroup).value_or(kNoCpuQuota));
  }
  return tightest;
}

int CpusWithin(double quota, int cpus) {
  return quota < cpus ? std::max(1, static_cast<int>(quota)) : std::max(1, cpus);
}

std::optional<int64_t> OomKills(const SystemRoots& roots) {
  for (const CgroupFolder& cgroup : CgroupFolders("memory", roots)) {
    const char* const file = cgroup.version == 2 ? "/memory.events" : "/memory.oom_control";
    if (const auto kills = CountIn(TextOf(cgroup.folder + file), "oom_kill"); kills.has_value()) {
      return kills;
    }
  }
  return std::nullopt;
}

std::optional<int64_t> PidsLimit(const SystemRoots& roots) {
  std::optional<int64_t> tightest;
  for (const CgroupFolder& cgroup : CgroupFolders("pids", roots)) {
    int64_t pids = 0;
    const std::string text = TextOf(cgroup.folder + "/pids.max");  // "max": no limit.
    if (absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &pids)) {
      tightest = std::min(tightest.value_or(pids), pids);
    }
  }
  return tightest;
}

}  // namespace dtrain
