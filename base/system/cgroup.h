// The control groups (cgroups, version 1 or 2) of this process, and how much CPU time they give it.
//
// Thread-safe. What cannot be read counts as without limit. A limit of any cgroup above counts too.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace dtrain {

// Where the kernel's files are; tests give their own.
struct SystemRoots {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

struct CgroupFolder {
  int version = 2;
  std::string path;    // The name in the hierarchy: "/a/b".
  std::string folder;  // With its files. It may not exist: a container sees the last one alone.
};

// Where `controller` ("cpu", "memory") may limit this process: its own cgroup, then those above it.
std::vector<CgroupFolder> CgroupFolders(absl::string_view controller,
                                        const SystemRoots& roots = {});

inline constexpr double kNoCpuQuota = std::numeric_limits<double>::infinity();

// How many CPUs' time this process may take, by the tightest quota; kNoCpuQuota without one.
double CpuQuota(const SystemRoots& roots = {});

// How many of `cpus` to compute on under `quota`, at least 1. Rounded down: a thread that has used
// its part of the time is stopped, and all others wait for it.
int CpusWithin(double quota, int cpus);

}  // namespace dtrain
