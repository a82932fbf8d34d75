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
#include "runtime/checkpoint/tiers/hosts_replicas.h"

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

// Whether the memory of the next host keeps what this one writes there.
bool IsReplicated(const std::string& path) { return IsOfStep(path) || IsOfJournal(path); }

bool IsManifest(const std::string& path) {
  return IsOfStep(path) && SplitFilePath(path).second == checkpoint::kManifestName;
}

bool HoldsLess(const FileIndex::Copy& a, const FileIndex::Copy& b) { return a.bytes < b.bytes; }

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

HostsStorage::HostsStorage(Options options)
    : options_(std::move(options)), behind_(options_.disks.size() + options_.memories.size()) {
  places_ = options_.disks;
  places_.insert(places_.end(), options_.memories.begin(), options_.memories.end());
  places_.push_back({options_.behind, nullptr});
}

std::vector<size_t> HostsStorage::PlacesToChange(const std::string& path) const {
  std::vector<size_t> places;
  if (options_.is_rank0) {
    places.resize(IsReplicated(path) ? behind_ : options_.disks.size());
    std::iota(places.begin(), places.end(), size_t{0});
    return places;
  }
  places.push_back(options_.host);
  if (has_replicas() && IsReplicated(path)) {
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
  if (!has_replicas() || !IsReplicated(path)) {
    return near;
  }
  return std::make_unique<ReplicatedFile>(
      std::move(near), IsOfJournal(path) ? CreateJournalReplica(path, access)
                                         : CreateReplica(path, bytes_expected, access));
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
    // A journal counts up to its last whole record, of which the longest copy has most.
    const FileIndex::Copy copy = IsOfJournal(path)
                                     ? *std::max_element(copies.begin(), copies.end(), HoldsLess)
                                     : copies.front();
    const Place& place = places_[copy.place];
    index_.SetOpened(path, copy);
    absl::StatusOr<std::unique_ptr<checkpoint::ReadableFile>> file =
        anew && place.peer != nullptr ? place.peer->OpenListed(path, copy.bytes)
                                      : place.storage->OpenFile(path);
    if (file.ok() && IsOfJournal(path) && is_memory(copy.place)) {
      return std::make_unique<LoneReplica>(
          *std::move(file),
          [this, path](const checkpoint::ReadableFile& from) { return SaveHere(path, from); });
    }
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
  // Other ranks drop copies too, so the one that was read need not be the first that is left, nor
  // the first that this rank knew of when another file of the folder made it look again.
  const std::optional<FileIndex::Copy> read = index_.Opened(path);
  DT_ASSIGN_OR_RETURN(FileIndex::Copies copies, Locate(path, /*anew=*/true));
  if (copies.empty()) {
    return false;
  }
  const auto damaged =
      read.has_value() ? std::find(copies.begin(), copies.end(), *read) : copies.begin();
  if (damaged == copies.end()) {
    return true;  // Another rank has dropped it, or it was read by its size while it was written.
  }
  if (copies.size() < 2) {
    return false;
  }
  const absl::Status removed = places_[damaged->place].storage->RemoveFile(path);
  DT_RETURN_IF_ERROR(absl::IsNotFound(removed) ? absl::OkStatus() : removed);
  copies.erase(damaged);
  index_.SetFile(path, std::move(copies));
  return true;
}

absl::StatusOr<std::optional<checkpoint::FileChecksum>> HostsStorage::SendFile(
    const std::string& path, checkpoint::Access access, checkpoint::Storage& to) {
  std::optional<checkpoint::FileChecksum> sent;
  // The hosts have the tier behind open too, and no other place.
  if (to.DisplayName("") != places_[behind_].storage->DisplayName("")) {
    return sent;
  }
  DT_ASSIGN_OR_RETURN(const FileIndex::Copies copies, Locate(path, /*anew=*/false));
  if (copies.empty() || places_[copies.front().place].peer == nullptr) {
    return sent;
  }
  const FileIndex::Copy& copy = copies.front();
  DT_ASSIGN_OR_RETURN(sent, places_[copy.place].peer->Send(path, copy.bytes, access));
  return sent;
}

std::optional<uint64_t> HostsStorage::FreeBytes() {
  const std::optional<uint64_t> mine = own().FreeBytes();
  return mine.has_value() ? std::optional(*mine * options_.disks.size()) : std::nullopt;
}

absl::StatusOr<std::string> HostsStorage::Probe() { return own().Probe(); }

std::string HostsStorage::DisplayName(const std::string& path) const {
  if (const auto opened = index_.Opened(path); opened.has_value() && IsOfJournal(path)) {
    return places_[opened->place].storage->DisplayName(path);  // Not always the nearest is.
  }
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
