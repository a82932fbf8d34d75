#include "checkpoint/tools/repair.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "checkpoint/restore/lineage.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/tools/prune.h"

namespace dtrain::checkpoint {
namespace {

constexpr uint64_t kHintBytesMax = 256;

// Adds what is damaged of one checkpoint, each file by itself. Errors other than damage are
// returned: what cannot be read now may be good.
absl::StatusOr<bool> IsGood(Storage& storage, StepId id, std::vector<Damage>& damage) {
  const size_t before = damage.size();
  const auto note = [&](const absl::Status& status) {
    if (absl::IsInvalidArgument(status)) {
      damage.push_back({id.DirectoryName(), std::string(status.message())});
      return absl::OkStatus();
    }
    return status;
  };
  const absl::StatusOr<Manifest> manifest = ReadManifest(storage, id);
  DT_RETURN_IF_ERROR(note(manifest.status()));
  for (size_t i = 0; manifest.ok() && i < manifest->files.size(); ++i) {
    const ManifestFile& file = manifest->files[i];
    DT_RETURN_IF_ERROR(note(VerifyFile(storage, absl::StrCat(id.DirectoryName(), "/", file.path),
                                       file.checksum, Verify::kHashes)));
  }
  return damage.size() == before;
}

// Temporary files in `folder`, which only a crash leaves.
absl::Status AddTemporaries(Storage& storage, const std::string& folder,
                            std::vector<Leftover>& leftovers) {
  const auto entries = storage.List(folder);
  if (absl::IsNotFound(entries.status())) {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(entries.status());
  for (const Storage::Entry& entry : *entries) {
    if (!entry.is_directory && absl::StartsWith(entry.name, kTemporaryPrefix)) {
      leftovers.push_back({folder.empty() ? entry.name : absl::StrCat(folder, "/", entry.name),
                           false, entry.bytes, ""});
    }
  }
  return absl::OkStatus();
}

std::optional<StepId> ReadHint(Storage& storage) {
  const auto text = ReadSmallFile(storage, kLatestName, kHintBytesMax);
  return text.ok() ? StepId::FromDirectoryName(absl::StripTrailingAsciiWhitespace(*text))
                   : std::nullopt;
}

// Checkpoints of which records say that they were committed.
std::set<StepId> KnownCommits(const EpochMap& epochs, std::optional<StepId> hint) {
  std::set<StepId> known;
  if (hint.has_value()) {
    known.insert(*hint);
  }
  if (!epochs.empty() && epochs.rbegin()->second.has_value() &&
      epochs.rbegin()->second->resumed_from.has_value()) {
    known.insert(*epochs.rbegin()->second->resumed_from);
  }
  return known;
}

// Folders of steps without a manifest: saves that did not end, or commits that have lost it.
absl::Status AddFolders(Storage& storage, const std::vector<StepId>& commits,
                        const std::set<StepId>& known, RepairPlan& plan) {
  DT_ASSIGN_OR_RETURN(const auto entries, storage.List(""));
  for (const Storage::Entry& entry : entries) {
    const std::optional<StepId> id = StepId::FromDirectoryName(entry.name);
    if (!id || !entry.is_directory ||
        std::find(commits.begin(), commits.end(), *id) != commits.end()) {
      continue;
    }
    if (known.contains(*id)) {
      plan.damage.push_back(
          {entry.name,
           absl::StrCat(storage.DisplayName(entry.name), " has lost its ", kManifestName,
                        ": records of the run name it as a checkpoint")});
      continue;
    }
    plan.leftovers.push_back({entry.name, true, BytesBelow(storage, entry.name), ""});
  }
  return absl::OkStatus();
}

// NotFound unless a run has saved, or has tried to: there are checkpoints, parts of one or records.
// Nothing at all is no error: an object store may hold unfinished uploads alone.
absl::Status CheckIsOfARun(Storage& storage) {
  DT_ASSIGN_OR_RETURN(const auto entries, storage.List(""));
  for (const Storage::Entry& entry : entries) {
    if (entry.is_directory &&
        (entry.name == "epochs" || StepId::FromDirectoryName(entry.name).has_value())) {
      return absl::OkStatus();
    }
  }
  if (entries.empty()) {
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat(
      storage.DisplayName(""), " holds no checkpoint and no record of a run; nothing was changed"));
}

// Decides about saves of the newest attempt, of which a process may still live on another machine.
void DecideNewest(const EpochMap& epochs, bool newest_is_good, RepairPlan& plan) {
  if (epochs.empty()) {
    return;  // Copied checkpoints: no attempt writes here.
  }
  const auto& [newest, record] = *epochs.rbegin();
  for (Leftover& leftover : plan.leftovers) {
    const std::optional<StepId> id = StepId::FromDirectoryName(leftover.path);
    if (!leftover.is_folder || id->epoch < newest) {
      continue;
    }
    if (!record.has_value()) {
      leftover.why_it_stays = "the record of the newest attempt is damaged";
    } else if (!newest_is_good) {
      leftover.why_it_stays =
          "the newest checkpoint is damaged or lost: bring it back, or start a run, which removes "
          "this";
    } else {
      plan.fence = true;
      plan.job = record->job;
      plan.world_size = record->world_size;
    }
  }
}

}  // namespace

absl::StatusOr<RepairPlan> PlanRepair(Storage& storage) {
  DT_RETURN_IF_ERROR(CheckIsOfARun(storage));
  RepairPlan plan;
  DT_ASSIGN_OR_RETURN(const EpochMap epochs, ReadEpochs(storage));
  for (const auto& [number, record] : epochs) {
    if (!record.has_value()) {
      const absl::Status status = ReadEpoch(storage, number).status();
      plan.damage.push_back({EpochPath(number), std::string(status.message())});
    }
  }
  DT_ASSIGN_OR_RETURN(const std::vector<StepId> commits, ListCheckpoints(storage));
  plan.checkpoints = commits.size();
  std::set<StepId> good;
  for (const StepId& id : commits) {
    DT_ASSIGN_OR_RETURN(const bool is_good, IsGood(storage, id, plan.damage));
    if (is_good) {
      good.insert(id);
    }
    DT_RETURN_IF_ERROR(AddTemporaries(storage, id.DirectoryName(), plan.leftovers));
  }
  DT_RETURN_IF_ERROR(AddTemporaries(storage, "", plan.leftovers));
  DT_RETURN_IF_ERROR(AddTemporaries(storage, "epochs", plan.leftovers));
  const std::optional<StepId> hint = ReadHint(storage);
  const size_t damaged = plan.damage.size();
  DT_RETURN_IF_ERROR(AddFolders(storage, commits, KnownCommits(epochs, hint), plan));
  const bool none_lost = plan.damage.size() == damaged;

  const std::vector<StepId> line = OnLineage(Lineage(epochs), commits);
  const auto newest =
      std::find_if(line.begin(), line.end(), [&](const StepId& id) { return good.contains(id); });
  if (newest != line.end()) {
    plan.resume_from = *newest;
  }
  // The folder that `latest` names may be there without its manifest. Then `latest` alone says that
  // it held a checkpoint, so the name stays.
  if (newest != line.end() && none_lost && hint != *newest) {
    plan.latest = newest->DirectoryName();
  }
  DecideNewest(epochs, none_lost && newest == line.begin(), plan);
  plan.ended_epoch = epochs.empty() ? kEpochMax : epochs.rbegin()->first - (plan.fence ? 0 : 1);
  return plan;
}

absl::Status Repair(Storage& storage, const RepairPlan& plan) {
  if (plan.fence) {
    DT_RETURN_IF_ERROR(BeginEpoch(storage, plan.job, plan.world_size, plan.resume_from).status());
  }
  absl::Status first;
  for (const Leftover& leftover : plan.leftovers) {
    if (leftover.why_it_stays.empty()) {
      first.Update(leftover.is_folder ? RemoveTree(storage, leftover.path)
                                      : storage.RemoveFile(leftover.path));
    }
  }
  first.Update(storage.RemoveUnfinished([&](const std::string& path) {
    const std::optional<StepId> id = StepId::FromDirectoryName(path.substr(0, path.find('/')));
    return id && id->epoch <= plan.ended_epoch;
  }));
  if (!plan.latest.empty()) {
    first.Update(storage.Replace(kLatestName, plan.latest + "\n"));
  }
  first.Update(storage.SyncDirectory(""));
  return first;
}

}  // namespace dtrain::checkpoint
