// The commits from which a run may resume, in order: the pure rules behind FindLatest and
// retention.
//
// The lineage starts at the newest epoch and goes on to the epoch that it resumed from, up to the
// step where it resumed. A commit of a stale writer is not on this line and is never chosen.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/commit/epoch.h"
#include "checkpoint/format/step_id.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

// Commits of `epoch` up to and including `step_max` belong to the lineage.
struct LineageSegment {
  int64_t epoch = 0;
  int64_t step_max = kStepMax;
  bool operator==(const LineageSegment&) const = default;
};

// Epochs by number; no value for a damaged record. Then it is not known where that epoch resumed,
// so the next older epoch follows with all its steps.
using EpochMap = std::map<int64_t, std::optional<EpochRecord>>;

std::vector<LineageSegment> Lineage(const EpochMap& epochs);

// The commits on the lineage, best first. Without epochs (a copied checkpoint) all commits, newest
// epoch and step first.
std::vector<StepId> OnLineage(const std::vector<LineageSegment>& lineage,
                              std::vector<StepId> commits);

// Reads all epoch records; damaged ones are logged and have no value. Other errors, which may be
// temporary, are returned.
absl::StatusOr<EpochMap> ReadEpochs(Storage& storage);

}  // namespace dtrain::checkpoint
