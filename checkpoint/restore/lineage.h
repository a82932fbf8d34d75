// Which commits may be resumed from, in order: the pure rules behind FindLatest and retention.
//
// Start at the newest epoch; go to the epoch that it resumed from, never beyond the step it names.
// A commit of a stale writer lies off this line and is never chosen.
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

// Commits of `epoch` up to and with `step_max` belong to the line.
struct LineageSegment {
  int64_t epoch = 0;
  int64_t step_max = kStepMax;
  bool operator==(const LineageSegment&) const = default;
};

// Epochs by number; no value where the record is damaged: then the next older epoch follows, its
// steps unbounded, because the record of where it resumed is lost.
using EpochMap = std::map<int64_t, std::optional<EpochRecord>>;

std::vector<LineageSegment> Lineage(const EpochMap& epochs);

// The commits on the line, best first. Without epochs (a copied checkpoint) all, newest epoch and
// step first.
std::vector<StepId> OnLineage(const std::vector<LineageSegment>& lineage,
                              std::vector<StepId> commits);

// Reads all epoch records; damaged ones are logged and have no value. Other errors, which may pass,
// are returned.
absl::StatusOr<EpochMap> ReadEpochs(Storage& storage);

}  // namespace dtrain::checkpoint
