#include "checkpoint/commit/retention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/status.h"
#include "checkpoint/restore/verify.h"

namespace dtrain::checkpoint {
namespace {

// Temporary files in `folder` that `stale` accepts by the name they were made for.
absl::Status RemoveTemporaries(Storage& storage, const std::string& folder,
                               absl::FunctionRef<bool(absl::string_view)> stale) {
  const auto entries = storage.List(folder);
  if (absl::IsNotFound(entries.status())) {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(entries.status());
  absl::Status first;
  for (const Storage::Entry& entry : *entries) {
    absl::string_view name = entry.name;
    if (!entry.is_directory && absl::ConsumePrefix(&name, kTemporaryPrefix) && stale(name)) {
      first.Update(
          storage.RemoveFile(folder.empty() ? entry.name : absl::StrCat(folder, "/", entry.name)));
    }
  }
  return first;
}

// The commits of `line` with the best values that verify, at most keep.best.
std::set<StepId> BestOf(const RetentionInput& input, const std::vector<StepId>& line,
                        absl::FunctionRef<bool(const StepId&)> verified) {
  std::vector<std::pair<double, StepId>> known;  // Sorted by it, the best is last.
  for (const StepId& id : line) {
    if (const auto value = input.metrics.find(id); value != input.metrics.end()) {
      known.emplace_back(input.keep.larger_is_better ? value->second : -value->second, id);
    }
  }
  std::sort(known.begin(), known.end());
  const auto count = static_cast<size_t>(std::max(input.keep.best, 0));
  std::set<StepId> best;
  for (; !known.empty() && best.size() < count; known.pop_back()) {
    if (verified(known.back().second)) {
      best.insert(known.back().second);
    }
  }
  return best;
}

}  // namespace

absl::Status RemoveLeftovers(Storage& storage, StepId current, std::optional<StepId> resumed_from,
                             const std::vector<StepId>& commits) {
  absl::Status first;
  DT_ASSIGN_OR_RETURN(const auto entries, storage.List(""));
  for (const Storage::Entry& entry : entries) {
    const std::optional<StepId> id = StepId::FromDirectoryName(entry.name);
    if (id && entry.is_directory && id->epoch <= current.epoch && id != current &&
        id != resumed_from && std::find(commits.begin(), commits.end(), *id) == commits.end()) {
      // Who unlinked the manifest may have died before that was durable.
      first.Update(storage.SyncDirectory(entry.name));
      first.Update(RemoveTree(storage, entry.name));
    }
  }
  first.Update(storage.RemoveUnfinished([&](const std::string& path) {
    const std::optional<StepId> id = StepId::FromDirectoryName(path.substr(0, path.find('/')));
    return id && id->epoch <= current.epoch && *id != current;
  }));
  first.Update(RemoveTemporaries(storage, "", [](absl::string_view) { return true; }));
  // A newer attempt may be writing its record now; older ones no longer can.
  const std::string own = EpochPath(current.epoch).substr(sizeof("epochs/") - 1);
  first.Update(RemoveTemporaries(storage, "epochs", [&own](absl::string_view name) {
    return name.substr(0, own.size()) <= own;
  }));
  return first;
}

std::optional<double> MetricOf(const Manifest& manifest, absl::string_view name) {
  const auto metrics = manifest.state.engine.find("metrics");
  if (metrics == manifest.state.engine.end() || !metrics->is_object()) {
    return std::nullopt;
  }
  const auto value = metrics->find(std::string(name));
  if (value == metrics->end() || !value->is_number() || !std::isfinite(value->get<double>())) {
    return std::nullopt;
  }
  return value->get<double>();
}

std::map<StepId, double> ReadMetrics(Storage& storage, const Retention& keep,
                                     const std::vector<StepId>& commits) {
  std::map<StepId, double> metrics;
  for (const StepId& id : commits) {
    if (keep.best == 0) {
      break;  // Manifests may be large, so they are not read in vain.
    }
    const absl::StatusOr<Manifest> manifest = ReadManifest(storage, id);
    const auto value = manifest.ok() ? MetricOf(*manifest, keep.metric) : std::nullopt;
    if (value.has_value()) {
      metrics[id] = *value;
    }
  }
  return metrics;
}

absl::Status RemoveCommit(Storage& storage, const StepId& id) {
  const std::string folder = id.DirectoryName();
  // Without its manifest the folder is no checkpoint, so a crash from here on leaves no half of
  // one.
  DT_RETURN_IF_ERROR(storage.RemoveFile(absl::StrCat(folder, "/", kManifestName)));
  DT_RETURN_IF_ERROR(storage.SyncDirectory(folder));
  return RemoveTree(storage, folder);
}

std::vector<StepId> CommitsToRemove(const RetentionInput& input,
                                    absl::FunctionRef<bool(const StepId&)> verified) {
  std::vector<StepId> remove;
  if (input.keep.newest == 0 || input.lineage.empty()) {
    return remove;
  }
  const int keep = std::max(input.keep.newest, kKeepMin);
  const std::vector<StepId> line = OnLineage(input.lineage, input.commits);
  if (line.size() <= static_cast<size_t>(keep)) {
    return remove;
  }
  const std::set<StepId> best = BestOf(input, line, verified);
  const auto is_needed = [&](const StepId& id) {
    return id == input.resumed_from || input.in_use.contains(id);
  };
  int kept = 0;
  for (const StepId& id : line) {
    if (kept < keep) {
      kept += verified(id) ? 1 : 0;
    } else if (!is_needed(id) && !best.contains(id) &&
               (input.keep.every == 0 || id.step % input.keep.every != 0)) {
      remove.push_back(id);
    }
  }
  // Remove commits of stale writers and of abandoned continuations, which are not on the lineage.
  if (kept == keep) {
    const int64_t oldest_epoch = input.lineage.back().epoch;
    for (const StepId& id : input.commits) {
      if (id.epoch >= oldest_epoch && id.epoch < input.own_epoch && !is_needed(id) &&
          std::find(line.begin(), line.end(), id) == line.end()) {
        remove.push_back(id);
      }
    }
  }
  std::sort(remove.begin(), remove.end());
  return remove;
}

absl::Status Collect(Storage& storage, StepId current, const Retention& keep,
                     std::optional<StepId> resumed_from, std::set<StepId> in_use,
                     std::set<StepId>& verified, const std::atomic<bool>* gives_up) {
  DT_ASSIGN_OR_RETURN(const EpochMap epochs, ReadEpochs(storage));
  RetentionInput input;
  // If a record is damaged, it is not known where its epoch resumed, nor what can be removed.
  const bool known = std::all_of(epochs.begin(), epochs.end(),
                                 [](const auto& epoch) { return epoch.second.has_value(); });
  if (known) {
    input.lineage = Lineage(epochs);
  }
  DT_ASSIGN_OR_RETURN(input.commits, ListCheckpoints(storage));
  input.keep = keep;
  input.resumed_from = resumed_from;
  input.own_epoch = current.epoch;
  input.in_use = std::move(in_use);
  input.metrics = ReadMetrics(storage, keep, input.commits);
  const auto is_verified = [&](const StepId& id) {
    if (verified.contains(id)) {
      return true;
    }
    absl::StatusOr<Manifest> manifest = ReadManifest(storage, id);
    absl::Status status = manifest.ok() ? VerifyFiles(storage, *manifest, Verify::kHashes, gives_up)
                                        : manifest.status();
    if (status.ok()) {  // Its writer may have died, or lost touch, before it was durable.
      status = storage.SyncDirectory(id.DirectoryName());
    }
    if (absl::IsCancelled(status)) {
      return false;
    }
    if (!status.ok()) {
      DT_LOG(Warning) << "checkpoint of " << id.ToString()
                      << " does not count as kept: " << status.message();
      return false;
    }
    verified.insert(id);
    return true;
  };
  const std::vector<StepId> remove = CommitsToRemove(input, is_verified);
  DT_RETURN_IF_ERROR(CheckGoesOn(gives_up, "removal"));
  absl::Status first;
  for (const StepId& id : remove) {
    first.Update(RemoveCommit(storage, id));
    verified.erase(id);
  }
  first.Update(RemoveLeftovers(storage, current, resumed_from, input.commits));
  return first;
}

}  // namespace dtrain::checkpoint
