// Checks whether a model's states fit into the memory of its ranks, and names remedies. Pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/plan/memory/memory_plan.h"

namespace dtrain::plan {

// The memory that a rank can still have. Ranks of one machine, or of one cgroup with a limit, share
// theirs.
struct RankMemory {
  uint64_t machine = 0;           // Equal for ranks of one machine.
  uint64_t cgroup = 0;            // Equal for ranks of one cgroup, of one machine.
  int64_t machine_available = 0;  // Bytes.
  int64_t cgroup_available = 0;   // Bytes; INT64_MAX without a limit.
};

// The smallest memory of any rank, if all ranks take equal parts of the memory that they share.
// REQUIRES: not empty.
double LeastAvailable(absl::Span<const RankMemory> ranks);

// InvalidArgument names the memory that the states need, the memory that there is, and the first
// remedy that suffices: a smaller micro-batch, a higher stage, offload, or more ranks. If the
// request has a batch, 90 % of the activations count, because they are an estimate. Logits and the
// process itself do not count.
absl::Status CheckStatesFit(const MemoryRequest& request, double available);

// The same for the offloaded states of a rank on a GPU. `available`: bytes of host memory.
absl::Status CheckOffloadFits(const MemoryRequest& request, double available);

// The same for the model before its training begins: below stage 3 every rank makes it whole, in
// fp32. `available`: bytes of host memory.
absl::Status CheckCanBeMade(const MemoryRequest& request, double available);

}  // namespace dtrain::plan
