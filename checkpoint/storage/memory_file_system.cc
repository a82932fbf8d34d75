#include "checkpoint/storage/memory_file_system.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/numeric/prng.h"
#include "base/status.h"

namespace dtrain::checkpoint {

namespace {

constexpr size_t kSectorBytes = 512;
constexpr size_t kPageBytes = 4096;

}  // namespace

// A file or a folder. Each name in a folder has a history since the last sync: first the durable
// entry, last the visible one; null for no entry.
struct MemoryFileSystem::Node {
  bool is_directory = false;
  std::string data;
  size_t synced_bytes = 0;
  std::vector<std::pair<size_t, size_t>> on_their_way;  // [begin, end) of held writes since then.
  std::map<std::string, std::vector<NodePtr>> names;

  NodePtr Get(const std::string& name) const {
    const auto found = names.find(name);
    return found == names.end() ? nullptr : found->second.back();
  }
  void Set(const std::string& name, NodePtr node) {
    std::vector<NodePtr>& history = names[name];
    if (history.empty()) {
      history.push_back(nullptr);
    }
    history.push_back(std::move(node));
  }
  bool Empty() const {
    return std::all_of(names.begin(), names.end(),
                       [](const auto& entry) { return entry.second.back() == nullptr; });
  }

  // Leaves zeros in place of some units of the held writes: of none, of all, or between.
  void LoseHeld(SplitMix64& random, size_t unit_bytes) {
    constexpr uint64_t kShares = 4;
    const uint64_t lost = random.Below(kShares + 1);
    for (const auto& [begin, end] : on_their_way) {
      for (size_t at = begin; at < std::min(end, data.size()); at += unit_bytes) {
        if (random.Below(kShares) < lost) {
          std::memset(data.data() + at, 0, std::min(unit_bytes, data.size() - at));
        }
      }
    }
    on_their_way.clear();
  }

  void EndProcess(SplitMix64& random) {
    if (!on_their_way.empty()) {
      LoseHeld(random, kPageBytes);
    }
    for (auto& [name, history] : names) {
      if (history.back() != nullptr) {
        history.back()->EndProcess(random);
      }
    }
  }

  void Crash(SplitMix64& random) {
    const size_t unsynced = data.size() - synced_bytes;
    if (on_their_way.empty() || random.Below(2) == 0) {  // Else the room is there as a whole.
      data.resize(synced_bytes + random.Below(unsynced + 1));
    }
    if (!on_their_way.empty()) {
      LoseHeld(random, kSectorBytes);
    }
    for (size_t at = synced_bytes; at < data.size(); at += kPageBytes) {
      if (random.Below(4) == 0) {
        std::memset(data.data() + at, 0, std::min(kPageBytes, data.size() - at));
      }
    }
    synced_bytes = data.size();
    for (auto& [name, history] : names) {
      history = {history[random.Below(history.size())]};
      if (history.back() != nullptr) {
        history.back()->Crash(random);
      }
    }
  }
};

MemoryFileSystem::MemoryFileSystem() : root_(std::make_shared<Node>()) {
  root_->is_directory = true;
}
MemoryFileSystem::~MemoryFileSystem() = default;

void MemoryFileSystem::Crash(uint64_t seed) {
  const std::lock_guard lock(mutex_);
  SplitMix64 random(seed);
  handles_.clear();
  root_->Crash(random);
}

void MemoryFileSystem::EndProcess(uint64_t seed) {
  const std::lock_guard lock(mutex_);
  SplitMix64 random(seed);
  handles_.clear();
  root_->EndProcess(random);
}

absl::StatusOr<MemoryFileSystem::NodePtr> MemoryFileSystem::FindFolder(
    const std::string& path) const {
  NodePtr at = root_;
  for (const absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    at = at->Get(std::string(part));
    if (at == nullptr || !at->is_directory) {
      return ErrnoStatus(at == nullptr ? ENOENT : ENOTDIR, DisplayName(path));
    }
  }
  return at;
}

absl::StatusOr<MemoryFileSystem::Place> MemoryFileSystem::Find(const std::string& path) const {
  DT_RETURN_IF_ERROR(CheckRelativePath(path));
  const size_t slash = path.rfind('/');
  Place place;
  place.name = slash == std::string::npos ? path : path.substr(slash + 1);
  DT_ASSIGN_OR_RETURN(place.folder,
                      FindFolder(slash == std::string::npos ? "" : path.substr(0, slash)));
  return place;
}

absl::StatusOr<MemoryFileSystem::NodePtr> MemoryFileSystem::Handle(int handle) const {
  const auto found = handles_.find(handle);
  if (found == handles_.end()) {
    return ErrnoStatus(EBADF, absl::StrCat("handle ", handle));
  }
  return found->second;
}

absl::StatusOr<int> MemoryFileSystem::Create(const std::string& path, int /*mode*/) {
  const std::lock_guard lock(mutex_);
  DT_ASSIGN_OR_RETURN(const Place place, Find(path));
  if (place.folder->Get(place.name) != nullptr) {
    return ErrnoStatus(EEXIST, absl::StrCat("cannot create ", DisplayName(path)));
  }
  const NodePtr node = std::make_shared<Node>();
  place.folder->Set(place.name, node);
  handles_[next_handle_] = node;
  return next_handle_++;
}

absl::Status MemoryFileSystem::Allocate(int handle, uint64_t /*bytes*/) {
  const std::lock_guard lock(mutex_);
  return Handle(handle).status();
}

absl::StatusOr<size_t> MemoryFileSystem::Write(int handle, absl::Span<const std::byte> data) {
  const std::lock_guard lock(mutex_);
  DT_ASSIGN_OR_RETURN(const NodePtr node, Handle(handle));
  node->data.append(reinterpret_cast<const char*>(data.data()), data.size());
  return data.size();
}

absl::StatusOr<size_t> MemoryFileSystem::WriteHeld(int handle, absl::Span<const std::byte> data) {
  const std::lock_guard lock(mutex_);
  DT_ASSIGN_OR_RETURN(const NodePtr node, Handle(handle));
  node->on_their_way.emplace_back(node->data.size(), node->data.size() + data.size());
  node->data.append(reinterpret_cast<const char*>(data.data()), data.size());
  return data.size();
}

absl::Status MemoryFileSystem::Sync(int handle) {
  const std::lock_guard lock(mutex_);
  DT_ASSIGN_OR_RETURN(const NodePtr node, Handle(handle));
  node->on_their_way.clear();
  node->synced_bytes = node->data.size();
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::Close(int handle) {
  const std::lock_guard lock(mutex_);
  handles_.erase(handle);
  return absl::OkStatus();
}

absl::StatusOr<int> MemoryFileSystem::OpenForReading(const std::string& path, uint64_t* bytes) {
  const std::lock_guard lock(mutex_);
  DT_ASSIGN_OR_RETURN(const Place place, Find(path));
  const NodePtr node = place.folder->Get(place.name);
  if (node == nullptr || node->is_directory) {
    return ErrnoStatus(node == nullptr ? ENOENT : EISDIR,
                       absl::StrCat("cannot open ", DisplayName(path)));
  }
  *bytes = node->data.size();
  handles_[next_handle_] = node;
  return next_handle_++;
}

absl::StatusOr<size_t> MemoryFileSystem::ReadAt(int handle, uint64_t offset,
                                                absl::Span<std::byte> into) {
  const std::lock_guard lock(mutex_);
  DT_ASSIGN_OR_RETURN(const NodePtr node, Handle(handle));
  if (offset >= node->data.size()) {
    return size_t{0};
  }
  const size_t n = std::min<size_t>(into.size(), node->data.size() - offset);
  std::memcpy(into.data(), node->data.data() + offset, n);
  return n;
}

absl::Status MemoryFileSystem::MakeDirectory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  DT_ASSIGN_OR_RETURN(const Place place, Find(path));
  if (place.folder->Get(place.name) != nullptr) {
    return ErrnoStatus(EEXIST, absl::StrCat("cannot create the folder ", DisplayName(path)));
  }
  const NodePtr node = std::make_shared<Node>();
  node->is_directory = true;
  place.folder->Set(place.name, node);
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::SyncDirectory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  DT_ASSIGN_OR_RETURN(const NodePtr folder, FindFolder(path));
  for (auto& [name, history] : folder->names) {
    history = {history.back()};
  }
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::Move(const std::string& from, const std::string& to, bool replace) {
  const std::lock_guard lock(mutex_);
  DT_ASSIGN_OR_RETURN(const Place source, Find(from));
  DT_ASSIGN_OR_RETURN(const Place target, Find(to));
  const NodePtr node = source.folder->Get(source.name);
  if (node == nullptr) {
    return ErrnoStatus(ENOENT, absl::StrCat("cannot rename ", DisplayName(from)));
  }
  if (!replace && target.folder->Get(target.name) != nullptr) {
    return ErrnoStatus(EEXIST, absl::StrCat("cannot publish ", DisplayName(to)));
  }
  target.folder->Set(target.name, node);
  source.folder->Set(source.name, nullptr);
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::RenameNoReplace(const std::string& from, const std::string& to) {
  return Move(from, to, /*replace=*/false);
}
absl::Status MemoryFileSystem::Rename(const std::string& from, const std::string& to) {
  return Move(from, to, /*replace=*/true);
}

absl::Status MemoryFileSystem::Unlink(const std::string& path) {
  const std::lock_guard lock(mutex_);
  DT_ASSIGN_OR_RETURN(const Place place, Find(path));
  const NodePtr node = place.folder->Get(place.name);
  if (node == nullptr || node->is_directory) {
    return ErrnoStatus(node == nullptr ? ENOENT : EISDIR,
                       absl::StrCat("cannot remove ", DisplayName(path)));
  }
  place.folder->Set(place.name, nullptr);
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::RemoveDirectory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  DT_ASSIGN_OR_RETURN(const Place place, Find(path));
  const NodePtr node = place.folder->Get(place.name);
  if (node == nullptr || !node->is_directory || !node->Empty()) {
    return ErrnoStatus(node == nullptr ? ENOENT : ENOTEMPTY,
                       absl::StrCat("cannot remove the folder ", DisplayName(path)));
  }
  place.folder->Set(place.name, nullptr);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Storage::Entry>> MemoryFileSystem::List(const std::string& path) {
  const std::lock_guard lock(mutex_);
  DT_ASSIGN_OR_RETURN(const NodePtr folder, FindFolder(path));
  std::vector<Storage::Entry> entries;
  for (const auto& [name, history] : folder->names) {
    if (history.back() != nullptr) {
      entries.push_back({name, history.back()->is_directory, history.back()->data.size()});
    }
  }
  return entries;
}

}  // namespace dtrain::checkpoint
