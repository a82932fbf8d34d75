#include "checkpoint/commit/copy_checkpoint.h"

#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "checkpoint/restore/checkpoint_tensors.h"
#include "checkpoint/restore/lineage.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/block_reader.h"

namespace dtrain::checkpoint {
namespace {

// The records that lead to `id`: that of its epoch and of those from which it resumed.
EpochMap RecordsFor(const EpochMap& epochs, StepId id) {
  EpochMap needed;
  for (auto at = epochs.find(id.epoch); at != epochs.end() && at->second.has_value();) {
    needed.insert(*at);
    const std::optional<StepId>& from = at->second->resumed_from;
    at = from.has_value() && from->epoch < at->first ? epochs.find(from->epoch) : epochs.end();
  }
  return needed;
}

// Adds `needed` to the records of the target. FailedPrecondition: one of them is another run's.
absl::Status Merge(Storage& to, const EpochMap& needed, EpochMap& epochs) {
  for (const auto& [number, record] : needed) {
    const auto [at, is_new] = epochs.emplace(number, record);
    if (!is_new && (!at->second.has_value() || EncodeEpoch(*at->second) != EncodeEpoch(*record))) {
      return absl::FailedPreconditionError(absl::StrCat(
          to.DisplayName(EpochPath(number)), " is ",
          at->second.has_value() ? absl::StrCat("the record of another run, ", at->second->job)
                                 : "damaged",
          ": copy to a folder of its own"));
    }
  }
  return absl::OkStatus();
}

// FailedPrecondition unless a run that starts in the target may resume from the checkpoint.
absl::Status CheckTarget(Storage& to, const Manifest& manifest, const EpochMap& epochs) {
  DT_ASSIGN_OR_RETURN(const std::vector<StepId> commits, ListCheckpoints(to));
  for (const StepId& other : commits) {
    const absl::StatusOr<Manifest> there = ReadManifest(to, other);
    if (there.ok() && there->job != manifest.job) {
      return absl::FailedPreconditionError(
          absl::StrCat(to.DisplayName(other.DirectoryName()), " is of another run, ", there->job,
                       "; this one is ", manifest.job, ": copy to a folder of its own"));
    }
  }
  if (OnLineage(Lineage(epochs), {manifest.id}).empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(to.DisplayName(EpochPath(epochs.rbegin()->first)),
                     " is of a newer attempt, which did not resume from ", manifest.id.ToString(),
                     ", so that a run there would not load it: copy to a folder of its own"));
  }
  return absl::OkStatus();
}

Access AccessOf(const ManifestFile& file) {
  return absl::StartsWith(file.path, "state/") ? Access::kOwner : Access::kEveryone;
}

// Whether the machine that holds the file has copied it.
absl::StatusOr<bool> SendFile(Storage& from, StepId id, const ManifestFile& file, Storage& to) {
  const std::string path = absl::StrCat(id.DirectoryName(), "/", file.path);
  const auto sent = from.SendFile(path, AccessOf(file), to);
  if (sent.ok() && sent->has_value() && **sent == file.checksum) {
    return true;
  }
  if (sent.ok() && !sent->has_value()) {
    return false;
  }
  if (!absl::IsAlreadyExists(sent.status())) {  // Part of it may be there, or something else.
    const absl::Status removed = to.RemoveFile(path);
    DT_RETURN_IF_ERROR(absl::IsNotFound(removed) ? absl::OkStatus() : removed);
  }
  DT_RETURN_IF_ERROR(sent.status());
  return false;  // Damaged there: the way by this machine names the place, and knows other copies.
}

absl::Status CopyFile(Storage& from, StepId id, const ManifestFile& file, Storage& to,
                      const std::atomic<bool>* gives_up) {
  const std::string path = absl::StrCat(id.DirectoryName(), "/", file.path);
  DT_ASSIGN_OR_RETURN(const auto opened, OpenChecked(from, id, file));
  FileChecksummer checksummer;
  const auto write = [&]() -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto created, to.CreateFile(path, opened->bytes(), AccessOf(file)));
    const auto append = [&](absl::Span<const std::byte> block) -> absl::Status {
      DT_RETURN_IF_ERROR(CheckGoesOn(gives_up, "copy"));
      checksummer.Add(block);
      return created->Append(block);
    };
    DT_RETURN_IF_ERROR(GiveFile(*opened, append));
    return created->Finish();
  };
  absl::Status status = write();
  if (status.ok() && checksummer.Finish() != file.checksum) {
    status = absl::InvalidArgumentError(absl::StrCat(
        from.DisplayName(path), " is damaged: its XXH3-128 is not what the manifest says"));
  }
  // One that is given up does not wait for the storage; the next copy replaces what it has left.
  if (!status.ok() && !absl::IsAlreadyExists(status) && !absl::IsCancelled(status)) {
    to.RemoveFile(path).IgnoreError();
  }
  return status;
}

// Says how much of a file an earlier copy has left in the target.
enum class Found { kNothing, kPart, kWhole };

absl::StatusOr<Found> Look(Storage& to, StepId id, const ManifestFile& file) {
  const std::string path = absl::StrCat(id.DirectoryName(), "/", file.path);
  const auto opened = to.OpenFile(path);
  if (absl::IsNotFound(opened.status())) {
    return Found::kNothing;
  }
  DT_RETURN_IF_ERROR(opened.status());
  const absl::Status status = VerifyFile(to, path, file.checksum, Verify::kHashes);
  if (!status.ok() && !absl::IsInvalidArgument(status)) {
    return status;
  }
  return status.ok() ? Found::kWhole : Found::kPart;
}

absl::Status CopyFiles(Storage& from, const Manifest& manifest, Storage& to, FileCopied copied,
                       const std::atomic<bool>* gives_up, CopyResult& result) {
  const std::string folder = manifest.id.DirectoryName();
  std::vector<Found> found;
  uint64_t missing = 0;
  for (const ManifestFile& file : manifest.files) {
    DT_RETURN_IF_ERROR(CheckGoesOn(gives_up, "copy"));
    DT_ASSIGN_OR_RETURN(const Found there, Look(to, manifest.id, file));
    found.push_back(there);
    missing += there == Found::kWhole ? 0 : file.checksum.bytes;
  }
  DT_RETURN_IF_ERROR(CheckRoom(to, missing, to.DisplayName(folder)));
  DT_RETURN_IF_ERROR(to.MakeDirectory(folder + "/model"));
  DT_RETURN_IF_ERROR(to.MakeDirectory(folder + "/state"));
  std::mutex mutex;
  const auto copy = [&](uint64_t i) -> absl::Status {
    DT_RETURN_IF_ERROR(CheckGoesOn(gives_up, "copy"));
    const ManifestFile& file = manifest.files[i];
    const bool is_whole = found[i] == Found::kWhole;
    if (found[i] == Found::kPart) {
      DT_RETURN_IF_ERROR(to.RemoveFile(absl::StrCat(folder, "/", file.path)));
    }
    bool is_sent = false;
    if (!is_whole) {
      DT_ASSIGN_OR_RETURN(is_sent, SendFile(from, manifest.id, file, to));
      DT_RETURN_IF_ERROR(is_sent ? absl::OkStatus()
                                 : CopyFile(from, manifest.id, file, to, gives_up));
    }
    const std::lock_guard lock(mutex);
    result.files_kept += is_whole ? 1 : 0;
    result.files_sent += is_sent ? 1 : 0;
    copied(file, is_whole);
    return absl::OkStatus();
  };
  DT_RETURN_IF_ERROR(ForEachAtOnce(manifest.files.size(), copy, from.hosts()));
  DT_RETURN_IF_ERROR(to.SyncDirectory(folder + "/model"));
  return to.SyncDirectory(folder + "/state");
}

absl::Status WriteEpochs(Storage& to, const EpochMap& needed, CopyResult& result) {
  DT_RETURN_IF_ERROR(needed.empty() ? absl::OkStatus() : to.MakeDirectory("epochs"));
  for (const auto& [number, record] : needed) {
    const absl::Status status = to.Publish(EpochPath(number), EncodeEpoch(*record));
    if (!status.ok() && !absl::IsAlreadyExists(status)) {  // Merge has compared those that exist.
      return status;
    }
    result.epochs += status.ok() ? 1 : 0;
  }
  return absl::OkStatus();
}

// The checkpoint has been copied before: it must be the same, and whole.
absl::Status CheckThere(Storage& to, const Manifest& manifest, const std::string& text,
                        const std::string& there) {
  const std::string folder = to.DisplayName(manifest.id.DirectoryName());
  if (text != there) {
    return absl::AlreadyExistsError(
        absl::StrCat(folder, " is another checkpoint; it is left alone: copy to another folder"));
  }
  return Annotate(VerifyFiles(to, manifest, Verify::kHashes),
                  absl::StrCat(folder, " was copied before; remove it to copy it again"));
}

}  // namespace

absl::StatusOr<CopyResult> CopyCheckpoint(Storage& from, StepId id, Storage& to, FileCopied copied,
                                          const std::atomic<bool>* gives_up) {
  DT_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(from, id));
  const std::string path = absl::StrCat(id.DirectoryName(), "/", kManifestName);
  DT_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(from, path, kManifestBytesMax));
  CopyResult result;
  result.files = manifest.files.size();
  result.bytes = manifest.data_bytes();
  DT_ASSIGN_OR_RETURN(const EpochMap epochs, ReadEpochs(from));
  const EpochMap needed = RecordsFor(epochs, id);
  DT_ASSIGN_OR_RETURN(EpochMap merged, ReadEpochs(to));
  DT_RETURN_IF_ERROR(Merge(to, needed, merged));
  DT_RETURN_IF_ERROR(CheckTarget(to, manifest, merged));
  const auto there = ReadSmallFile(to, path, kManifestBytesMax);
  if (there.ok()) {
    DT_RETURN_IF_ERROR(CheckThere(to, manifest, text, *there));
    result.was_there = true;
    result.files_kept = result.files;
  } else if (absl::IsNotFound(there.status())) {
    DT_RETURN_IF_ERROR(CopyFiles(from, manifest, to, copied, gives_up, result));
  } else {
    return there.status();
  }
  DT_RETURN_IF_ERROR(WriteEpochs(to, needed, result));
  if (!result.was_there) {
    DT_RETURN_IF_ERROR(to.Publish(path, text));
  }
  DT_ASSIGN_OR_RETURN(std::vector<StepId> commits, ListCheckpoints(to));
  const std::vector<StepId> line = OnLineage(Lineage(merged), std::move(commits));
  if (!line.empty() && line.front() == id) {
    DT_RETURN_IF_ERROR(to.Replace(kLatestName, id.DirectoryName() + "\n"));
  }
  return result;
}

}  // namespace dtrain::checkpoint
