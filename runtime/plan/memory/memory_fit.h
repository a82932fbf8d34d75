// Whether a model's states fit into the memory that its ranks have, and what would make them. Pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/plan/memory/memory_plan.h"

namespace dtrain::plan {

// What a rank can still have. Ranks of one machine, or of one cgroup with a limit, share theirs.
struct RankMemory {
  uint64_t machine = 0;           // Equal for ranks of one machine.
  uint64_t cgroup = 0;            // Equal for ranks of one cgroup, of one machine.
  int64_t machine_available = 0;  // Bytes.
  int64_t cgroup_available = 0;   // Bytes; INT64_MAX without a limit.
};

// The least that any rank has, when all take equal parts of what they share.
// REQUIRES: not empty.
double LeastAvailable(absl::Span<const RankMemory> ranks);

// OK, or InvalidArgument: what the states take and what there is, and which smaller micro-batch,
// higher stage, whether offload, or how many ranks would do. Activations count if the request
// has a batch, less a tenth, because they are an estimate; logits and the process itself do not.
absl::Status CheckStatesFit(const MemoryRequest& request, double available);

// The same of what is offloaded of a rank on a GPU, which is the host's. `available`: there.
absl::Status CheckOffloadFits(const MemoryRequest& request, double available);

// The same of what a model takes before its training begins: below stage 3 it is made whole, in
// fp32, on every rank. `available`: of the host.
absl::Status CheckCanBeMade(const MemoryRequest& request, double available);

}  // namespace dtrain::plan
