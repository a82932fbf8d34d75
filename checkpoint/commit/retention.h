// Removes old checkpoints and the remains of crashed attempts. Called by rank 0's writer, one call
// at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/step_id.h"
#include "checkpoint/restore/lineage.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

inline constexpr int kKeepMin = 2;  // Never fewer verified checkpoints than this.

struct Retention {
  int newest = 3;     // Number of newest checkpoints to keep, at least kKeepMin; 0: all.
  int64_t every = 0;  // Checkpoints of its multiples stay for good; 0: none do.
  // Number of checkpoints to keep for their value of `metric`, whatever their age; 0: none.
  int best = 0;
  std::string metric;             // For example "eval/loss"; see MetricOf.
  bool larger_is_better = false;  // An accuracy; a loss is better when it is smaller.
};

// The value of a metric when the checkpoint was saved: engine.metrics.NAME of its manifest, where
// readers that do not know it pass over it. No value: it is not recorded, or it is no number (NaN
// and infinities cannot be the best).
std::optional<double> MetricOf(const Manifest& manifest, absl::string_view name);

struct RetentionInput {
  std::vector<LineageSegment> lineage;
  std::vector<StepId> commits;
  Retention keep;
  std::optional<StepId> resumed_from;  // This checkpoint is never removed.
  int64_t own_epoch = 0;
  std::map<StepId, double> metrics;  // The commits' values of keep.metric, where they are known.
  std::set<StepId> in_use;           // Others read these, so they stay.
};

// The commits to remove, oldest first. Pure but for `verified`, which is asked about a commit only
// when something older could go. A commit that does not verify is not counted as kept, neither
// among the newest nor among the best. If values are equal, the later commit is the better one.
// Commits before a fresh start are another run's and stay.
std::vector<StepId> CommitsToRemove(const RetentionInput& input,
                                    absl::FunctionRef<bool(const StepId&)> verified);

// The values of keep.metric of the commits that have one, as RetentionInput takes them. Reads no
// manifest unless keep.best is set.
std::map<StepId, double> ReadMetrics(Storage& storage, const Retention& keep,
                                     const std::vector<StepId>& commits);

// Removes a commit: its manifest first, durably, so that a crash leaves no half of a checkpoint.
absl::Status RemoveCommit(Storage& storage, const StepId& id);

// Removes what saves or copies that have ended left behind without a commit: folders of steps but
// for `current`, `resumed_from` and the `commits`, unfinished uploads, temporary files. Those of
// epochs behind that of `current` stay. Goes on after an error and returns the first. REQUIRES:
// `commits` are all that the storage has, and no save or copy but that of `current` is under way.
absl::Status RemoveLeftovers(Storage& storage, StepId current, std::optional<StepId> resumed_from,
                             const std::vector<StepId>& commits);

// Removes old commits (manifest first, durably, then the data), folders that can no longer become a
// checkpoint, and temporary files. `verified` holds the checkpoints that have been read back whole.
// Goes on after an error and returns the first.
//
// `current` is this attempt's save that is under way, or its last: its folder stays. Every other
// folder without a manifest, of this epoch or an older one, belongs to a save that has ended.
// REQUIRES: all ranks of the attempt have ended their earlier saves; no newer attempt was seen.
// Cancelled: another thread has set `gives_up`, which may be null, before anything was removed.
absl::Status Collect(Storage& storage, StepId current, const Retention& keep,
                     std::optional<StepId> resumed_from, std::set<StepId> in_use,
                     std::set<StepId>& verified, const std::atomic<bool>* gives_up = nullptr);

}  // namespace dtrain::checkpoint
