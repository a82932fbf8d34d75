// The memory that this machine and this process's cgroup still have. Thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/system/cgroup.h"

namespace dtrain {

struct AvailableMemory {
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  uint64_t machine = 0;  // Equal for processes of one machine.
  uint64_t cgroup = 0;   // Equal for processes of one cgroup, of one machine.
  int64_t machine_bytes = kNoLimit;
  int64_t cgroup_bytes = kNoLimit;        // kNoLimit without a limit.
  int64_t machine_total_bytes = 0;        // 0: it cannot be read.
  int64_t cgroup_limit_bytes = kNoLimit;  // The limit of the cgroup with the least left.

  int64_t bytes() const { return std::min(machine_bytes, cgroup_bytes); }
};

// Reads /proc and /sys/fs/cgroup (version 1 or 2). A limit that cannot be read counts as none. File
// cache and reclaimable slab count as available, because the kernel frees them on demand.
AvailableMemory ReadAvailableMemory(const SystemRoots& roots = {});

}  // namespace dtrain
