// The control groups (cgroups, version 1 or 2) of this process, and how much CPU time they give it.
//
// Thread-safe. A limit that cannot be read counts as none. Limits of the cgroups above apply too.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace dtrain {

// Roots of the kernel's files; tests give their own.
struct SystemRoots {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

struct CgroupFolder {
  int version = 2;
  std::string path;  // The name in the hierarchy: "/a/b".
  // Folder with its files. It may not exist, because a container sees only the last one.
  std::string folder;
};

// The cgroups in which `controller` ("cpu", "memory", "pids") may limit this process: its own, then
// those above it.
std::vector<CgroupFolder> CgroupFolders(absl::string_view controller,
                                        const SystemRoots& roots = {});

inline constexpr double kNoCpuQuota = std::numeric_limits<double>::infinity();

// The CPU time that this process may use, in CPUs, by the tightest quota; kNoCpuQuota without one.
double CpuQuota(const SystemRoots& roots = {});

// How many of `cpus` to compute on under `quota`, at least 1. Rounded down, because otherwise a
// thread that has used its time is stopped and all others wait for it.
int CpusWithin(double quota, int cpus);

// How many processes of this process's memory cgroup the kernel has killed because memory ran out;
// nothing where that cannot be read.
std::optional<int64_t> OomKills(const SystemRoots& roots = {});

// The tightest limit on processes and threads; nothing without one.
std::optional<int64_t> PidsLimit(const SystemRoots& roots = {});

}  // namespace dtrain
