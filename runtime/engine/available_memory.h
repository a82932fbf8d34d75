// What memory this machine and this process's cgroup still have.
#pragma once

#include "runtime/plan/memory_fit.h"

namespace dtrain {

// Reads /proc and /sys/fs/cgroup (version 1 or 2). What cannot be read counts as without limit.
// File cache counts as available: the kernel gives it up.
plan::RankMemory ReadRankMemory();

}  // namespace dtrain
