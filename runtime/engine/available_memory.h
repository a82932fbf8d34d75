// What memory this machine and this process's cgroup, or a GPU, still have.
#pragma once

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "runtime/device/device.h"
#include "runtime/plan/memory_fit.h"

namespace dtrain {

// Reads /proc and /sys/fs/cgroup (version 1 or 2). What cannot be read counts as without limit.
// File cache counts as available: the kernel gives it up.
plan::RankMemory ReadRankMemory();

// Of the GPU that `device` is, shared by the ranks that train on it.
absl::StatusOr<plan::RankMemory> ReadDeviceMemory(const Device& device);

// Collective: the least that any rank of `group` has when `mine` is what this one reads.
absl::StatusOr<double> LeastAvailable(comm::Group& group, const plan::RankMemory& mine);

}  // namespace dtrain
