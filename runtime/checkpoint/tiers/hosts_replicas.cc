#include "runtime/checkpoint/tiers/hosts_replicas.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"
#include "checkpoint/commit/nonce.h"
#include "checkpoint/journal/journal_format.h"
#include "checkpoint/journal/mend_segments.h"
#include "checkpoint/journal/segment_reader.h"
#include "checkpoint/storage/block_reader.h"
#include "runtime/checkpoint/tiers/hosts_storage.h"

namespace dtrain {
namespace {

using checkpoint::StepId;

// Segments of the journal that a host's memory keeps of another host: those of the steps behind the
// newest checkpoint and the one being saved, and what earlier attempts have left.
constexpr uint64_t kReplicatedSegmentsMax = 4;

// Makes a durable copy of the first `bytes` bytes of `from` in place of what stands there.
absl::Status CopyTo(checkpoint::Storage& place, const std::string& path,
                    const checkpoint::ReadableFile& from, uint64_t bytes) {
  const std::string folder = SplitFilePath(path).first;
  DT_RETURN_IF_ERROR(place.MakeDirectory(folder));
  const absl::Status removed = place.RemoveFile(path);
  DT_RETURN_IF_ERROR(absl::IsNotFound(removed) ? absl::OkStatus() : removed);
  // The longest copy counts, so that none may ever be longer than what it holds.
  DT_ASSIGN_OR_RETURN(auto file,
                      place.CreateFile(path, /*bytes_expected=*/0, checkpoint::Access::kOwner));
  checkpoint::BlockReader blocks(from, bytes);
  for (uint64_t at = 0; at < bytes; at += checkpoint::kBlockBytes) {
    DT_ASSIGN_OR_RETURN(const absl::Span<const std::byte> block, blocks.Next());
    DT_RETURN_IF_ERROR(file->Append(block));
  }
  DT_RETURN_IF_ERROR(file->Finish());
  return place.SyncDirectory(folder);
}

// The bytes up to which a file of the journal counts in a place; 0: it has none that does.
uint64_t WholeBytesIn(checkpoint::Storage& place, const std::string& path,
                      const checkpoint::SegmentFile& which) {
  auto file = place.OpenFile(path);
  return file.ok() ? checkpoint::WholeBytes({*std::move(file), place.DisplayName(path)}, which) : 0;
}

}  // namespace

bool IsOfJournal(const std::string& path) {
  return absl::StartsWith(path, absl::StrCat(checkpoint::kJournalFolder, "/")) ||
         path == checkpoint::kJournalFolder;
}

absl::Status ReplicatedFile::Append(absl::Span<const std::byte> data) {
  Send(data);
  return near_->Append(data);
}

absl::Status ReplicatedFile::AppendHeld(absl::Span<const std::byte> data) {
  Send(data);
  return near_->AppendHeld(data);
}

void ReplicatedFile::Send(absl::Span<const std::byte> data) {
  if (replica_.file != nullptr && data.size() > replica_.bytes_max - bytes_) {
    Note(absl::ResourceExhaustedError(
        absl::StrFormat("it has %d bytes and room for %d in the memory of the next host", bytes_,
                        replica_.bytes_max)));
  }
  if (replica_.file != nullptr) {
    bytes_ += data.size();
    Note(replica_.file->Append(data));
  }
}

absl::Status ReplicatedFile::Sync() {
  const absl::Status synced = near_->Sync();
  if (replica_.is_synced && replica_.file != nullptr) {
    Note(replica_.file->Sync());
  }
  return synced;
}

absl::Status ReplicatedFile::Finish() {
  if (replica_.file != nullptr) {
    Note(replica_.file->Finish());
  }
  return near_->Finish();
}

void ReplicatedFile::Note(const absl::Status& status) {
  if (!status.ok()) {
    replica_.file.reset();
    replica_.end(status);
  }
}

ReplicatedFile::Replica HostsStorage::CreateReplica(const std::string& path, uint64_t bytes,
                                                    checkpoint::Access access) {
  checkpoint::Storage& memory = *places_[next_memory()].storage;
  auto file = memory.CreateFile(path, bytes, access);
  if (absl::IsAlreadyExists(file.status())) {  // A save of this step was given up.
    memory.RemoveFile(path).IgnoreError();
    file = memory.CreateFile(path, bytes, access);
  }
  NoteReplica(file.status());
  return {.file = file.ok() ? *std::move(file) : nullptr,
          .end = [this](const absl::Status& status) { NoteReplica(status); }};
}

absl::Status HostsStorage::CheckSegments(checkpoint::Storage& memory) {
  if (journal_room_ == 0) {
    return absl::ResourceExhaustedError(
        "the memory of the next host has room for two snapshots, and for nothing beside them");
  }
  DT_ASSIGN_OR_RETURN(const auto entries, memory.List(checkpoint::kJournalFolder));
  const auto segments = static_cast<uint64_t>(std::count_if(
      entries.begin(), entries.end(), [](const Entry& entry) { return entry.is_directory; }));
  if (segments > kReplicatedSegmentsMax) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the memory of the next host has %d segments and room for %d, because no checkpoint has "
        "become durable meanwhile",
        segments, kReplicatedSegmentsMax));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<checkpoint::WritableFile>> HostsStorage::CreateJournalStream(
    const std::string& path, checkpoint::Access access) {
  const Place& memory = places_[next_memory()];
  DT_RETURN_IF_ERROR(CheckSegments(*memory.storage));
  return memory.peer != nullptr ? memory.peer->CreateStream(path, access)
                                : memory.storage->CreateFile(path, /*bytes_expected=*/0, access);
}

ReplicatedFile::Replica HostsStorage::CreateJournalReplica(const std::string& path,
                                                           checkpoint::Access access) {
  const auto end = [this, path](const absl::Status& status) {
    if (options_.on_journal_alone != nullptr) {
      options_.on_journal_alone(DisplayName(path), std::string(status.message()));
    }
  };
  auto file = CreateJournalStream(path, access);
  if (!file.ok()) {
    end(file.status());
  }
  return {.file = file.ok() ? *std::move(file) : nullptr,
          .end = end,
          .bytes_max = journal_room_ / kReplicatedSegmentsMax,
          .is_synced = true};
}

absl::Status HostsStorage::SaveHere(const std::string& path, const checkpoint::ReadableFile& from) {
  const auto which = checkpoint::SegmentFile::FromPath(path);
  if (!which.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(DisplayName(path), " has the name of no file of a journal"));
  }
  const uint64_t whole_here = WholeBytesIn(own(), path, *which);
  const auto [folder, name] = SplitFilePath(path);
  const std::string copy =
      absl::StrCat(folder, "/", checkpoint::kTemporaryPrefix, name, "-", checkpoint::RandomNonce());
  const absl::Cleanup remove = [&] { own().RemoveFile(copy).IgnoreError(); };
  // The longest copy of a file is the one that is read first, so that none may be longer than what
  // is whole in it: a damaged copy is made once more, up to where it counts.
  uint64_t whole = from.bytes();
  uint64_t bytes = 0;
  do {
    bytes = whole;
    DT_RETURN_IF_ERROR(CopyTo(own(), copy, from, bytes));
    whole = WholeBytesIn(own(), copy, *which);
  } while (whole > whole_here && whole < bytes);
  if (whole > whole_here) {
    return own().MoveFile(copy, path);
  }
  if (whole_here == 0) {
    return absl::DataLossError(absl::StrCat(
        DisplayName(path), ": no record of it is whole in this copy or on this host's disk"));
  }
  DT_ASSIGN_OR_RETURN(const auto here, own().OpenFile(path));
  return here->MakeDurable();
}

absl::StatusOr<checkpoint::FileCopy> HostsStorage::OpenCopy(const std::string& path, size_t copy) {
  DT_ASSIGN_OR_RETURN(const FileIndex::Copies copies, Locate(path, /*anew=*/copy == 0));
  if (copy >= copies.size()) {
    return absl::OutOfRangeError(
        absl::StrCat(DisplayName(path), " has ", copies.size(), " copies"));
  }
  checkpoint::Storage& place = *places_[copies[copy].place].storage;
  DT_ASSIGN_OR_RETURN(auto file, place.OpenFile(path));
  return checkpoint::FileCopy{std::move(file), place.DisplayName(path)};
}

absl::Status HostsStorage::KeepCopies(const std::string& path) {
  if (!has_replicas() || !IsOfJournal(path) || journal_room_ == 0) {
    return absl::OkStatus();  // Without room, the next segment's alarm says so.
  }
  DT_ASSIGN_OR_RETURN(const FileIndex::Copies copies, Locate(path, /*anew=*/true));
  const size_t hosts = options_.disks.size();
  std::optional<size_t> holder;  // The host that has the longest copies, which count.
  uint64_t bytes = 0;
  size_t place = 0;
  for (const FileIndex::Copy& copy : copies) {
    if (copy.place == behind_ || copy.bytes < bytes) {
      continue;
    }
    const size_t host = copy.place % hosts;  // Disks and memories stand in the hosts' order.
    if (copy.bytes == bytes && holder.has_value() && *holder != host) {
      return absl::OkStatus();
    }
    std::tie(holder, bytes, place) = std::tuple(host, copy.bytes, copy.place);
  }
  if (!holder.has_value()) {
    return absl::NotFoundError(absl::StrCat(DisplayName(path), ": no host holds this file"));
  }
  checkpoint::Storage& memory = *places_[hosts + (*holder + 1) % hosts].storage;
  absl::Status kept = memory.MakeDirectory(SplitFilePath(path).first);
  kept.Update(kept.ok() ? CheckSegments(memory) : absl::OkStatus());
  if (kept.ok() && bytes > journal_room_ / kReplicatedSegmentsMax) {
    kept = absl::ResourceExhaustedError(
        absl::StrFormat("it has %d bytes and room for %d in the memory of the next host", bytes,
                        journal_room_ / kReplicatedSegmentsMax));
  }
  if (kept.ok()) {
    DT_ASSIGN_OR_RETURN(const auto file, places_[place].storage->OpenFile(path));
    kept = CopyTo(memory, path, *file, file->bytes());
  }
  index_.ForgetFolder(SplitFilePath(path).first);
  if (!kept.ok() && options_.on_journal_alone != nullptr) {
    options_.on_journal_alone(DisplayName(path), std::string(kept.message()));
  }
  return absl::OkStatus();
}

void HostsStorage::NoteReplica(const absl::Status& status) {
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    is_first = !status.ok() && !replica_fails_;
    replica_fails_ = !status.ok();
  }
  if (is_first) {  // One line until it works again.
    DT_LOG(Warning) << "a replica of this rank's part was not written: " << status.message()
                    << ". The checkpoint itself is not concerned; the next one tries again";
  }
}

absl::Status HostsStorage::CheckReplicas(const checkpoint::Manifest& manifest) {
  const std::string folder = manifest.id.DirectoryName();
  size_t missing = 0;
  for (const checkpoint::ManifestFile& file : manifest.files) {
    // A folder stays known once it is listed, so that only the first of its files asks the hosts.
    DT_ASSIGN_OR_RETURN(const FileIndex::Copies copies,
                        Locate(absl::StrCat(folder, "/", file.path), /*anew=*/false));
    missing += std::any_of(copies.begin(), copies.end(),
                           [&](const FileIndex::Copy& copy) {
                             return is_memory(copy.place) && copy.bytes == file.checksum.bytes;
                           })
                   ? 0
                   : 1;
  }
  return missing == 0 ? absl::OkStatus()
                      : absl::UnavailableError(absl::StrCat(missing, " of ", manifest.files.size(),
                                                            " files have no replica"));
}

void HostsStorage::SettleReplicas(const std::string& path, absl::string_view manifest) {
  const auto parsed = checkpoint::ParseManifest(manifest, path);
  const StepId settled = *StepId::FromDirectoryName(SplitFilePath(path).first);
  absl::Status status = parsed.ok() ? CheckReplicas(*parsed) : parsed.status();
  if (status.ok()) {
    std::vector<size_t> memories(options_.memories.size());
    std::iota(memories.begin(), memories.end(), options_.disks.size());
    status = OnPlaces(memories, [&](checkpoint::Storage& memory) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const auto entries, memory.List(""));
      for (const Entry& entry : entries) {
        const auto id = StepId::FromDirectoryName(entry.name);
        // A newer attempt removes its own.
        if (entry.is_directory && id.has_value() && *id != settled && id->epoch <= settled.epoch) {
          DT_RETURN_IF_ERROR(checkpoint::RemoveTree(memory, entry.name));
        }
      }
      return absl::OkStatus();
    });
  }
  if (!status.ok() && options_.on_lacking_replica != nullptr) {
    options_.on_lacking_replica(settled, std::string(status.message()));
  }
}

}  // namespace dtrain
