// The seam below PosixStorage: its system calls, with a real form, one in memory with a crash model
// (memory_file_system.h) and one that fails at a chosen call (faulty_file_system.h).
//
// Paths are relative to the file system's root and never leave it; no call follows a symbolic link.
// A handle is a small integer that the file system owns until Close. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates a file with O_CREAT | O_EXCL | O_NOFOLLOW below the root.
  virtual absl::StatusOr<int> Create(const std::string& path, int mode) = 0;
  // Reserves `bytes` for the file; OK where nothing can be reserved. Its size may change until
  // Sync, which sets it to what was written. For a new file, at most once.
  virtual absl::Status Allocate(int handle, uint64_t bytes) = 0;
  // Appends up to data.size() bytes and returns how many; the caller handles short writes. They may
  // still be on their way: an error of it comes from a later Write or from Sync.
  virtual absl::StatusOr<size_t> Write(int handle, absl::Span<const std::byte> data) = 0;
  // The same; the data stays until Sync or Close has returned, so that it need not be copied.
  virtual absl::StatusOr<size_t> WriteHeld(int handle, absl::Span<const std::byte> data) {
    return Write(handle, data);
  }
  // Whether Write collects bytes into blocks, so that small parts cost no more than large ones.
  virtual bool Collects(int /*handle*/) { return false; }
  // Begins to write what it has collected: no Write follows.
  virtual void EndWriting(int /*handle*/) {}
  virtual absl::Status Sync(int handle) = 0;
  // So many Syncs end sooner side by side than one after the other.
  virtual size_t SyncsAtOnce() const { return 1; }
  virtual absl::Status Close(int handle) = 0;

  virtual absl::StatusOr<int> OpenForReading(const std::string& path, uint64_t* bytes) = 0;
  // Reads at `offset` and returns the number of bytes, fewer than asked only at the end of the
  // file.
  virtual absl::StatusOr<size_t> ReadAt(int handle, uint64_t offset,
                                        absl::Span<std::byte> into) = 0;
  virtual void DropCache(int handle) = 0;
  // Reads of whole blocks go around the page cache from here on, where that is possible.
  virtual void PassCache(int /*handle*/) {}
  // Whether the system itself reads far ahead of a reader that goes forwards through a file.
  virtual bool ReadsAhead() const { return false; }
  // Tells that the range will be read soon.
  virtual void ReadAhead(int /*handle*/, uint64_t /*offset*/, uint64_t /*bytes*/) {}

  // AlreadyExists when something has the name.
  virtual absl::Status MakeDirectory(const std::string& path) = 0;
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  virtual absl::Status RenameNoReplace(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Unlink(const std::string& path) = 0;
  virtual absl::Status RemoveDirectory(const std::string& path) = 0;
  virtual absl::StatusOr<std::vector<Storage::Entry>> List(const std::string& path) = 0;

  // Bytes that this process may still write; none: it cannot be known.
  virtual std::optional<uint64_t> FreeBytes() { return std::nullopt; }
  // Says what made the writes of large files so far slower than they could be; "" for nothing.
  virtual std::string SlowerWrites() { return ""; }

  virtual std::string DisplayName(const std::string& path) const = 0;
};

// InvalidArgument unless `path` is made of plain components: none empty, "." or "..", no NUL byte.
absl::Status CheckRelativePath(const std::string& path);

// The file system below `directory`, which is created when it is missing. Each component of a path
// is opened by itself with O_NOFOLLOW, so neither ".." nor a link leads out. A file for which 4 MiB
// or more are allocated is written with O_DIRECT, several blocks at once (direct_file.h).
absl::StatusOr<std::unique_ptr<FileSystem>> OpenRealFileSystem(const std::string& directory);

}  // namespace dtrain::checkpoint
