#include "checkpoint/tools/prune.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "checkpoint/restore/verify.h"

namespace dtrain::checkpoint {
namespace {

// The line of resumption. Without records of epochs (copied checkpoints) all commits are on it, as
// the loader sees it.
absl::StatusOr<std::vector<LineageSegment>> LineOf(Storage& storage, const EpochMap& epochs,
                                                   const std::vector<StepId>& commits) {
  for (const auto& [number, record] : epochs) {
    if (!record.has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat(storage.DisplayName(EpochPath(number)),
                       " is damaged, so it is not known from which checkpoints a run may resume; "
                       "nothing is removed"));
    }
  }
  if (!epochs.empty()) {
    return Lineage(epochs);
  }
  std::vector<LineageSegment> line;
  for (const StepId& id : commits) {  // Newest first.
    if (line.empty() || line.back().epoch != id.epoch) {
      line.push_back({id.epoch, kStepMax});
    }
  }
  return line;
}

}  // namespace

uint64_t BytesBelow(Storage& storage, const std::string& path) {
  const auto entries = storage.List(path);
  uint64_t bytes = 0;
  if (!entries.ok()) {
    return bytes;
  }
  for (const Storage::Entry& entry : *entries) {
    bytes +=
        entry.is_directory ? BytesBelow(storage, absl::StrCat(path, "/", entry.name)) : entry.bytes;
  }
  return bytes;
}

absl::StatusOr<PrunePlan> PlanPrune(Storage& storage, const Retention& keep) {
  DT_ASSIGN_OR_RETURN(const EpochMap epochs, ReadEpochs(storage));
  RetentionInput input;
  DT_ASSIGN_OR_RETURN(input.commits, ListCheckpoints(storage));
  DT_ASSIGN_OR_RETURN(input.lineage, LineOf(storage, epochs, input.commits));
  input.keep = keep;
  if (!epochs.empty()) {
    input.resumed_from = epochs.rbegin()->second->resumed_from;
    input.own_epoch = epochs.rbegin()->first;
  }
  input.metrics = ReadMetrics(storage, keep, input.commits);
  PrunePlan plan;
  std::map<StepId, bool> verified;
  const auto is_verified = [&](const StepId& id) {
    if (const auto known = verified.find(id); known != verified.end()) {
      return known->second;
    }
    const absl::StatusOr<Manifest> manifest = ReadManifest(storage, id);
    const absl::Status status =
        manifest.ok() ? VerifyFiles(storage, *manifest, Verify::kHashes) : manifest.status();
    if (!status.ok()) {
      plan.damaged.push_back(absl::StrCat(id.DirectoryName(), ": ", status.message()));
    }
    return verified[id] = status.ok();
  };
  const std::vector<StepId> remove = CommitsToRemove(input, is_verified);
  for (const StepId& id : remove) {
    plan.remove.push_back({id, BytesBelow(storage, id.DirectoryName())});
  }
  for (const StepId& id : input.commits) {
    if (std::find(remove.begin(), remove.end(), id) == remove.end()) {
      plan.stay.push_back(id);
    }
  }
  const auto good = std::count_if(verified.begin(), verified.end(), [&](const auto& known) {
    return known.second && std::find(remove.begin(), remove.end(), known.first) == remove.end();
  });
  DT_CHECK(remove.empty() || good >= kKeepMin) << good << " verified checkpoints would be left";
  return plan;
}

absl::Status Prune(Storage& storage, const PrunePlan& plan,
                   absl::FunctionRef<void(const PrunedCheckpoint&)> removed) {
  for (const PrunedCheckpoint& checkpoint : plan.remove) {
    DT_RETURN_IF_ERROR(RemoveCommit(storage, checkpoint.id));
    removed(checkpoint);
  }
  return storage.SyncDirectory("");
}

}  // namespace dtrain::checkpoint
