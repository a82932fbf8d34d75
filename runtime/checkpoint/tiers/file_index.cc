#include "runtime/checkpoint/tiers/file_index.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/net/wire.h"

namespace dtrain {
namespace {

constexpr size_t kIndexedNameBytesMax = 4096;

// Erases what lies below a folder. `below`: its path with a slash.
template <typename Value>
void EraseBelow(const std::string& below, std::map<std::string, Value>& from) {
  for (auto at = from.lower_bound(below); at != from.end() && absl::StartsWith(at->first, below);) {
    at = from.erase(at);
  }
}

}  // namespace

std::pair<std::string, std::string> SplitFilePath(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::pair(std::string(), path)
                                    : std::pair(path.substr(0, slash), path.substr(slash + 1));
}

std::optional<FileIndex::Copies> FileIndex::Find(const std::string& path) const {
  const auto [folder_name, name] = SplitFilePath(path);
  const std::lock_guard lock(mutex_);
  const auto folder = folders_.find(folder_name);
  if (folder == folders_.end()) {
    return std::nullopt;
  }
  const auto file = folder->second.find(name);
  return file == folder->second.end() ? std::nullopt : std::optional(file->second);
}

void FileIndex::SetFolder(const std::string& folder, Folder files) {
  const std::lock_guard lock(mutex_);
  folders_[folder] = std::move(files);
}

void FileIndex::SetFile(const std::string& path, Copies copies) {
  auto [folder, name] = SplitFilePath(path);
  const std::lock_guard lock(mutex_);
  folders_[folder][name] = std::move(copies);
}

std::optional<FileIndex::Copy> FileIndex::Opened(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const auto opened = opened_.find(path);
  return opened == opened_.end() ? std::nullopt : std::optional(opened->second);
}

void FileIndex::SetOpened(const std::string& path, const Copy& copy) {
  const std::lock_guard lock(mutex_);
  opened_[path] = copy;
}

void FileIndex::ForgetFile(const std::string& path) {
  const auto [folder_name, name] = SplitFilePath(path);
  const std::lock_guard lock(mutex_);
  opened_.erase(path);
  if (const auto folder = folders_.find(folder_name); folder != folders_.end()) {
    folder->second.erase(name);
  }
}

void FileIndex::ForgetFolder(const std::string& folder) {
  const std::string below = folder + "/";
  const std::lock_guard lock(mutex_);
  folders_.erase(folder);
  EraseBelow(below, folders_);
  EraseBelow(below, opened_);
}

std::string FileIndex::Encode(const std::vector<std::string>& folders) const {
  comm::WireWriter files;
  uint32_t count = 0;
  const std::lock_guard lock(mutex_);
  for (const std::string& path : folders) {
    const auto folder = folders_.find(path);
    if (folder == folders_.end()) {
      continue;
    }
    for (const auto& [name, copies] : folder->second) {
      ++count;
      files.Bytes(path);
      files.Bytes(name);
      files.U32(static_cast<uint32_t>(copies.size()));
      for (const Copy& copy : copies) {
        files.U64(copy.place);
        files.U64(copy.bytes);
      }
    }
  }
  comm::WireWriter all;
  all.U32(count);
  return all.Take() + files.Take();
}

absl::Status FileIndex::Take(const std::string& text, size_t places) {
  std::map<std::string, Folder> folders;
  comm::WireReader reader(text);
  bool is_valid = true;
  const uint32_t count = reader.U32();
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    const std::string path(reader.Bytes(kIndexedNameBytesMax));
    const std::string name(reader.Bytes(kIndexedNameBytesMax));
    const uint32_t copies_count = reader.U32();
    Copies& copies = folders[path][name];
    for (uint32_t copy = 0; copy < copies_count && reader.ok(); ++copy) {
      const uint64_t place = reader.U64();
      copies.push_back({place, reader.U64()});
      is_valid = is_valid && place < places;
    }
    is_valid = is_valid && !copies.empty();
  }
  if (!reader.Complete() || !is_valid) {
    return absl::InvalidArgumentError(absl::StrCat("rank 0's list of files, of ", text.size(),
                                                   " bytes, is malformed or names a place that is "
                                                   "not among ",
                                                   places));
  }
  const std::lock_guard lock(mutex_);
  for (auto& [path, folder] : folders) {
    folders_[path] = std::move(folder);
  }
  return absl::OkStatus();
}

}  // namespace dtrain
