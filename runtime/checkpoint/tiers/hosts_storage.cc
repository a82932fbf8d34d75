#include "runtime/checkpoint/tiers/hosts_storage.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "checkpoint/format/manifest_seal.h"
#include "checkpoint/storage/block_reader.h"

namespace dtrain {
namespace {

using checkpoint::StepId;

constexpr char kEpochsFolder[] = "epochs";
constexpr size_t kPlacesAtOnce = 16;

bool IsOfEpochs(const std::string& path) {
  return path == kEpochsFolder || absl::StartsWith(path, absl::StrCat(kEpochsFolder, "/"));
}

// Whether the path is a checkpoint's folder or in it.
bool IsOfStep(const std::string& path) {
  return StepId::FromDirectoryName(path.substr(0, path.find('/'))).has_value();
}

bool IsManifest(const std::string& path) {
  return IsOfStep(path) && SplitFilePath(path).second == checkpoint::kManifestName;
}

// A text that was read already.
class TextFile final : public checkpoint::ReadableFile {
 public:
  TextFile(std::string text, std::string display_name)
      : text_(std::move(text)), display_name_(std::move(display_name)) {}
  uint64_t bytes() const override { return text_.size(); }
  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> into) const override {
    if (offset > text_.size() || into.size() > text_.size() - offset) {
      return absl::OutOfRangeError(absl::StrCat(display_name_, " has ", text_.size(), " bytes; ",
                                                into.size(), " from ", offset, " were wanted"));
    }
    if (!into.empty()) {
      std::memcpy(into.data(), text_.data() + offset, into.size());
    }
    return absl::OkStatus();
  }

 private:
  const std::string text_;
  const std::string display_name_;
};

}  // namespace

// A file on this host's disk and in the memory of the next host.
class ReplicatedFile final : public checkpoint::WritableFile {
 public:
  ReplicatedFile(HostsStorage& storage, std::unique_ptr<checkpoint::WritableFile> near,
                 std::unique_ptr<checkpoint::WritableFile> replica)
      : storage_(storage), near_(std::move(near)), replica_(std::move(replica)) {}

  absl::Status Append(absl::Span<const std::byte> data) override {
    DT_RETURN_IF_ERROR(near_->Append(data));
    if (replica_ != nullptr) {
      Note(replica_->Append(data));
    }
    return absl::OkStatus();
  }
  absl::Status Sync() override { return near_->Sync(); }
  absl::Status Finish() override {
    if (replica_ != nullptr) {
      Note(replica_->Finish());
    }
    return near_->Finish();
  }

 private:
  void Note(const absl::Status& status) {
    if (!status.ok()) {
      replica_.reset();
      storage_.NoteReplica(status);
    }
  }

  HostsStorage& storage_;
  const std::unique_ptr<checkpoint::WritableFile> near_;
  std::unique_ptr<checkpoint::WritableFile> replica_;
};

HostsStorage::HostsStorage(Options options)
    : options_(std::move(options)), behind_(options_.disks.size() + options_.memories.size()) {
  places_ = options_.disks;
  places_.insert(places_.end(), options_.memories.begin(), options_.memories.end());
  places_.push_back({options_.behind, nullptr});
}

std::vector<size_t> HostsStorage::PlacesToChange(const std::string& path) const {
  std::vector<size_t> places;
  if (options_.is_rank0) {
    places.resize(IsOfStep(path) ? behind_ : options_.disks.size());
    std::iota(places.begin(), places.end(), size_t{0});
    return places;
  }
  places.push_back(options_.host);
  if (has_replicas() && IsOfStep(path)) {
    places.push_back(next_memory());
  }
  return places;
}

std::vector<size_t> HostsStorage::PlacesToList(const std::string& path) const {
  if (IsOfEpochs(path) && !options_.reads_behind) {
    return {options_.host, behind_};  // Every host has the same records.
  }
  std::vector<size_t> places(options_.reads_behind ? behind_ + 1 : behind_);
  std::iota(places.begin(), places.end(), size_t{0});
  return places;
}

absl::Status HostsStorage::OnPlaces(const std::vector<size_t>& places,
                                    absl::FunctionRef<absl::Status(checkpoint::Storage&)> body) {
  std::vector<absl::Status> statuses(places.size());
  DT_RETURN_IF_ERROR(checkpoint::ForEachAtOnce(
      places.size(),
      [&](uint64_t i) {
        statuses[i] = body(*places_[places[i]].storage);
        return absl::OkStatus();  // The other hosts are asked whatever one has answered.
      },
      kPlacesAtOnce));
  absl::Status first;
  absl::Status missing;
  bool is_done = false;
  for (size_t i = 0; i < places.size(); ++i) {
    is_done = is_done || statuses[i].ok();
    if (absl::IsNotFound(statuses[i])) {
      missing.Update(statuses[i]);
    } else if (!is_memory(places[i])) {
      first.Update(statuses[i]);
    }
  }
  first.Update(is_done ? absl::OkStatus() : missing);
  return first;
}

absl::StatusOr<std::unique_ptr<checkpoint::WritableFile>> HostsStorage::CreateFile(
    const std::string& path, uint64_t bytes_expected, checkpoint::Access access) {
  DT_ASSIGN_OR_RETURN(auto near, own().CreateFile(path, bytes_expected, access));
  if (!has_replicas() || !IsOfStep(path)) {
    return near;
  }
  return std::make_unique<ReplicatedFile>(*this, std::move(near),
                                          CreateReplica(path, bytes_expected, access));
}

std::unique_ptr<checkpoint::WritableFile> HostsStorage::CreateReplica(const std::string& path,
                                                                      uint64_t bytes,
                                                                      checkpoint::Access access) {
  checkpoint::Storage& memory = *places_[next_memory()].storage;
  auto file = memory.CreateFile(path, bytes, access);
  if (absl::IsAlreadyExists(file.status())) {  // A save of this step was given up.
    memory.RemoveFile(path).IgnoreError();
    file = memory.CreateFile(path, bytes, access);
  }
  NoteReplica(file.status());
  return file.ok() ? *std::move(file) : nullptr;
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

absl::StatusOr<FileIndex::Copies> HostsStorage::Locate(const std::string& path, bool anew) {
  if (!anew) {
    if (auto copies = index_.Find(path); copies.has_value()) {
      return *std::move(copies);
    }
  }
  const absl::Status listed = List(SplitFilePath(path).first).status();
  if (!listed.ok() && !absl::IsNotFound(listed)) {
    return listed;
  }
  return index_.Find(path).value_or(FileIndex::Copies());
}

absl::StatusOr<std::unique_ptr<checkpoint::ReadableFile>> HostsStorage::OpenFile(
    const std::string& path) {
  if (IsManifest(path) || IsOfEpochs(path)) {
    return OpenSealed(path);
  }
  for (const bool anew : {false, true}) {  // A copy that was known may be gone by now.
    DT_ASSIGN_OR_RETURN(const FileIndex::Copies copies, Locate(path, anew));
    if (copies.empty()) {
      break;
    }
    const Place& place = places_[copies.front().place];
    if (anew && place.peer != nullptr) {
      return place.peer->OpenListed(path, copies.front().bytes);
    }
    auto file = place.storage->OpenFile(path);
    if (!absl::IsNotFound(file.status())) {
      return file;
    }
  }
  return absl::NotFoundError(absl::StrCat(DisplayName(path), ": no host holds this file"));
}

// A manifest and an epoch record say whether they are whole; the first whole copy counts.
absl::StatusOr<std::unique_ptr<checkpoint::ReadableFile>> HostsStorage::OpenSealed(
    const std::string& path) {
  std::optional<std::string> damaged;
  absl::Status failed;
  const auto read = [&](size_t place) -> std::unique_ptr<checkpoint::ReadableFile> {
    checkpoint::Storage& storage = *places_[place].storage;
    auto text = checkpoint::ReadSmallFile(storage, path, checkpoint::kManifestBytesMax);
    if (!text.ok()) {
      failed.Update(absl::IsNotFound(text.status()) ? absl::OkStatus() : text.status());
      return nullptr;
    }
    if (const absl::Status seal = checkpoint::CheckManifestSeal(*text); !seal.ok()) {
      DT_LOG(Warning) << storage.DisplayName(path) << " " << seal.message();
      if (!damaged.has_value()) {
        damaged = *std::move(text);
      }
      return nullptr;
    }
    return std::make_unique<TextFile>(*std::move(text), storage.DisplayName(path));
  };
  if (auto file = read(options_.host); file != nullptr) {
    return file;
  }
  std::vector<size_t> others;
  if (IsOfEpochs(path) && !options_.reads_behind) {
    others = {behind_};
  } else {
    DT_ASSIGN_OR_RETURN(const FileIndex::Copies copies, Locate(path, /*anew=*/false));
    for (const FileIndex::Copy& copy : copies) {
      others.push_back(copy.place);
    }
  }
  for (const size_t place : others) {
    if (auto file = place == options_.host ? nullptr : read(place); file != nullptr) {
      return file;
    }
  }
  if (damaged.has_value()) {
    return std::make_unique<TextFile>(*std::move(damaged), DisplayName(path));
  }
  return failed.ok() ? absl::NotFoundError(absl::StrCat(DisplayName(path), ": no host holds it"))
                     : failed;
}

absl::Status HostsStorage::Publish(const std::string& path, absl::string_view content) {
  return IsOfEpochs(path)   ? PublishEpoch(path, content)
         : IsManifest(path) ? PublishManifest(path, content)
                            : own().Publish(path, content);
}

absl::Status HostsStorage::PublishEpoch(const std::string& path, absl::string_view content) {
  DT_RETURN_IF_ERROR(places_[behind_].storage->Publish(path, content));
  const absl::Status copied =
      OnPlaces(PlacesToChange(path), [&](checkpoint::Storage& disk) -> absl::Status {
        DT_RETURN_IF_ERROR(disk.MakeDirectory(kEpochsFolder));
        return disk.Publish(path, content);
      });
  if (!copied.ok()) {
    DT_LOG(Warning) << "a host has no copy of the record of this attempt: " << copied.message();
  }
  return absl::OkStatus();
}

absl::Status HostsStorage::PublishManifest(const std::string& path, absl::string_view content) {
  DT_RETURN_IF_ERROR(own().Publish(path, content));
  // From here on the checkpoint is committed, and its files are all there.
  index_.ForgetFolder(SplitFilePath(path).first);
  std::vector<size_t> others;
  for (size_t host = 0; host < options_.disks.size(); ++host) {
    if (host != options_.host) {
      others.push_back(host);
    }
  }
  const absl::Status copied = OnPlaces(others, [&](checkpoint::Storage& disk) -> absl::Status {
    const absl::Status status = disk.Publish(path, content);
    if (status.ok()) {
      return status;
    }
    // Two hosts may have the same disk, if it is a shared one.
    const auto there = checkpoint::ReadSmallFile(disk, path, checkpoint::kManifestBytesMax);
    return there.ok() && *there == content ? absl::OkStatus() : status;
  });
  if (!copied.ok()) {
    DT_LOG(Warning) << "a host has no copy of a manifest: " << copied.message();
  }
  if (has_replicas()) {
    SettleReplicas(path, content);
  }
  return absl::OkStatus();
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

absl::Status HostsStorage::Replace(const std::string& path, absl::string_view content) {
  return own().Replace(path, content);
}

absl::Status HostsStorage::MakeDirectory(const std::string& path) {
  std::vector<size_t> places = PlacesToChange(path);
  if (IsOfEpochs(path)) {
    places.push_back(behind_);
  }
  return OnPlaces(places, [&](checkpoint::Storage& place) { return place.MakeDirectory(path); });
}

absl::Status HostsStorage::SyncDirectory(const std::string& path) {
  if (IsOfEpochs(path)) {
    return places_[behind_].storage->SyncDirectory(path);
  }
  const bool is_root = path.empty() || (IsOfStep(path) && path.find('/') == std::string::npos);
  if (!is_root || !options_.is_rank0) {
    return own().SyncDirectory(path);
  }
  std::vector<size_t> places = PlacesToChange(path);
  if (options_.reads_behind) {
    places.push_back(behind_);
  }
  return OnPlaces(places, [&](checkpoint::Storage& place) { return place.SyncDirectory(path); });
}

absl::StatusOr<std::vector<checkpoint::Storage::Entry>> HostsStorage::List(
    const std::string& path) {
  const std::vector<size_t> places = PlacesToList(path);
  std::vector<absl::StatusOr<std::vector<Entry>>> lists(places.size());
  DT_RETURN_IF_ERROR(checkpoint::ForEachAtOnce(
      places.size(),
      [&](uint64_t i) {
        lists[i] = places_[places[i]].storage->List(path);
        return absl::OkStatus();
      },
      kPlacesAtOnce));
  std::map<std::string, Entry> all;
  FileIndex::Folder files;
  bool is_there = false;
  for (size_t i = 0; i < places.size(); ++i) {
    const absl::Status& status = lists[i].status();
    // While training goes on, an outage of the tier behind holds up no save.
    const bool may_fail = is_memory(places[i]) || (places[i] == behind_ && !options_.reads_behind);
    if (!status.ok() && !absl::IsNotFound(status) && !may_fail) {
      return status;
    }
    if (!status.ok()) {
      continue;
    }
    is_there = true;
    for (Entry& entry : *lists[i]) {
      if (!entry.is_directory) {
        files[entry.name].push_back({places[i], entry.bytes});
      }
      all.emplace(entry.name, std::move(entry));
    }
  }
  if (!is_there) {
    index_.ForgetFolder(path);
    return absl::NotFoundError(absl::StrCat(DisplayName(path), ": no host holds this folder"));
  }
  std::vector<Entry> entries;
  for (auto& [name, entry] : all) {
    entries.push_back(std::move(entry));
  }
  index_.SetFolder(path, std::move(files));
  return entries;
}

absl::Status HostsStorage::RemoveFile(const std::string& path) {
  std::vector<size_t> places = PlacesToChange(path);
  if (IsOfEpochs(path)) {
    places.push_back(behind_);
  } else if (options_.is_rank0 && !IsManifest(path)) {  // A manifest is on every host.
    DT_ASSIGN_OR_RETURN(const FileIndex::Copies copies, Locate(path, /*anew=*/false));
    places.clear();
    for (const FileIndex::Copy& copy : copies) {
      if (copy.place != behind_) {
        places.push_back(copy.place);
      }
    }
  }
  index_.ForgetFile(path);
  if (places.empty()) {
    return absl::NotFoundError(absl::StrCat(DisplayName(path), ": no host holds this file"));
  }
  return OnPlaces(places, [&](checkpoint::Storage& place) { return place.RemoveFile(path); });
}

absl::Status HostsStorage::RemoveDirectory(const std::string& path) {
  index_.ForgetFolder(path);
  return OnPlaces(PlacesToChange(path),
                  [&](checkpoint::Storage& place) { return place.RemoveDirectory(path); });
}

absl::StatusOr<bool> HostsStorage::DropDamaged(const std::string& path) {
  const std::optional<FileIndex::Copies> read = index_.Find(path);
  DT_ASSIGN_OR_RETURN(const FileIndex::Copies copies, Locate(path, /*anew=*/true));
  if (read.has_value() && !copies.empty() && !(copies.front() == read->front())) {
    return true;  // Another rank has dropped it, or it was read by its size while it was written.
  }
  if (copies.size() < 2) {
    return false;
  }
  const absl::Status removed = places_[copies.front().place].storage->RemoveFile(path);
  DT_RETURN_IF_ERROR(absl::IsNotFound(removed) ? absl::OkStatus() : removed);
  index_.SetFile(path, FileIndex::Copies(copies.begin() + 1, copies.end()));
  return true;
}

std::optional<uint64_t> HostsStorage::FreeBytes() {
  const std::optional<uint64_t> mine = own().FreeBytes();
  return mine.has_value() ? std::optional(*mine * options_.disks.size()) : std::nullopt;
}

absl::StatusOr<std::string> HostsStorage::Probe() { return own().Probe(); }

std::string HostsStorage::DisplayName(const std::string& path) const {
  // A checkpoint's folder is where its manifest is, which is on every host.
  const bool is_folder = IsOfStep(path) && path.find('/') == std::string::npos;
  const std::optional<FileIndex::Copies> copies =
      index_.Find(is_folder ? absl::StrCat(path, "/", checkpoint::kManifestName) : path);
  size_t place = options_.host;
  if (copies.has_value() &&
      std::none_of(copies->begin(), copies->end(),
                   [&](const FileIndex::Copy& copy) { return copy.place == options_.host; })) {
    place = copies->front().place;
  }
  return places_[place].storage->DisplayName(path);
}

std::string HostsStorage::FoundFiles(const StepId& id) const {
  const std::string folder = id.DirectoryName();
  return index_.Encode({folder, folder + "/model", folder + "/state"});
}

absl::Status HostsStorage::TakeFoundFiles(const std::string& text) {
  return index_.Take(text, places_.size());
}

}  // namespace dtrain
