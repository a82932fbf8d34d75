// A file system in memory that models what a power cut may lose.
//
// Until a file is synced, a crash keeps any prefix of its new bytes, with some pages as zeros;
// until a folder is synced, each name in it may be as it was at any moment since the last sync.
// Writes of held memory go around the page cache into room that was reserved before, several at
// once: a crash may leave the whole room, with zeros for any sectors, and so may the end of the
// process. This is weaker than the promises of ext4 and XFS, so whatever survives here survives
// there. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/storage/file_system.h"

namespace dtrain::checkpoint {

class MemoryFileSystem final : public FileSystem {
 public:
  MemoryFileSystem();
  ~MemoryFileSystem() override;

  // Simulates a power cut and a new mount: drops unsynced data and names as `seed` chooses. Handles
  // become invalid.
  void Crash(uint64_t seed);
  // Simulates the end of the process alone: of the writes of held memory that no Sync has waited
  // for, pages are lost as `seed` chooses. Handles become invalid.
  void EndProcess(uint64_t seed);

  absl::StatusOr<int> Create(const std::string& path, int mode) override;
  absl::Status Allocate(int handle, uint64_t bytes) override;
  absl::StatusOr<size_t> Write(int handle, absl::Span<const std::byte> data) override;
  absl::StatusOr<size_t> WriteHeld(int handle, absl::Span<const std::byte> data) override;
  absl::Status Sync(int handle) override;
  absl::Status Close(int handle) override;
  absl::StatusOr<int> OpenForReading(const std::string& path, uint64_t* bytes) override;
  absl::StatusOr<size_t> ReadAt(int handle, uint64_t offset, absl::Span<std::byte> into) override;
  void DropCache(int /*handle*/) override {}
  absl::Status MakeDirectory(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::Status RenameNoReplace(const std::string& from, const std::string& to) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Unlink(const std::string& path) override;
  absl::Status RemoveDirectory(const std::string& path) override;
  absl::StatusOr<std::vector<Storage::Entry>> List(const std::string& path) override;
  std::string DisplayName(const std::string& path) const override { return "memory:/" + path; }

 private:
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  struct Place {
    NodePtr folder;
    std::string name;
  };

  absl::StatusOr<NodePtr> FindFolder(const std::string& path) const;
  absl::StatusOr<Place> Find(const std::string& path) const;
  absl::StatusOr<NodePtr> Handle(int handle) const;
  absl::Status Move(const std::string& from, const std::string& to, bool replace);

  mutable std::mutex mutex_;
  NodePtr root_;
  std::map<int, NodePtr> handles_;
  int next_handle_ = 0;
};

}  // namespace dtrain::checkpoint
