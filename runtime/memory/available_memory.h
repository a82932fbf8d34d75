// The memory that a rank's machine and cgroup, or its GPU, still have.
#pragma once

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "runtime/device/device.h"
#include "runtime/plan/memory/memory_fit.h"

namespace dtrain {

// The host's memory; base/system/available_memory.h reads it.
plan::RankMemory ReadRankMemory();

// The memory of the GPU `device`, which the ranks that train on it share.
absl::StatusOr<plan::RankMemory> ReadDeviceMemory(const Device& device);

// Collective: the least that any rank of `group` has when `mine` is what this one reads.
absl::StatusOr<double> LeastAvailable(comm::Group& group, const plan::RankMemory& mine);

}  // namespace dtrain
