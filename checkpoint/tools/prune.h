// Removes old checkpoints of a folder by the rules of a run's own retention, and says which. A run
// may go on meanwhile: it keeps the newest ones, which are never removed here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "checkpoint/commit/retention.h"
#include "checkpoint/format/step_id.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

struct PrunedCheckpoint {
  StepId id;
  uint64_t bytes = 0;  // The size of all files in its folder.
};

struct PrunePlan {
  std::vector<PrunedCheckpoint> remove;  // Oldest first.
  std::vector<StepId> stay;              // Newest first.
  std::vector<std::string> damaged;  // Why a checkpoint does not count as kept, as it was found.
};

// Says which checkpoints go. Reads every byte of those that are counted as kept; at least two that
// verify stay. FailedPrecondition: an epoch record is damaged, so that it is not known what a run
// would resume from.
absl::StatusOr<PrunePlan> PlanPrune(Storage& storage, const Retention& keep);

// Removes what the plan says, the manifest of each first, and calls `removed` after each.
absl::Status Prune(Storage& storage, const PrunePlan& plan,
                   absl::FunctionRef<void(const PrunedCheckpoint&)> removed);

// The sum of all files below `path`; what cannot be listed counts as empty.
uint64_t BytesBelow(Storage& storage, const std::string& path);

}  // namespace dtrain::checkpoint
