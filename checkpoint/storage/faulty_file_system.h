// A file system that fails at a chosen call: the fault-injecting twin of a real or in-memory one.
//
// Calls are counted from 0 over all methods but Collects, DisplayName, DropCache, EndWriting,
// FreeBytes, PassCache, ReadAhead, ReadsAhead and SlowerWrites. WriteHeld counts as two: it
// reserves room, then it writes. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/storage/file_system.h"

namespace dtrain::checkpoint {

enum class FaultKind {
  kNoSpace,     // The call fails with ENOSPC.
  kIoError,     // The call fails with EIO.
  kShortWrite,  // A write takes half of the bytes, and the next write finds the disk full; other
                // calls fail with EIO.
  kStop,        // This call and all later ones fail, as if the process were gone.
  kTornStop,    // Like kStop, but a write still takes half of its bytes; of held memory the later
                // half, since the writes of its blocks end in any order.
  kSigkill,     // The process ends with SIGKILL before the call.
  kBitRot,      // A write stores a wrong first bit and reports success; other calls succeed.
};

struct FaultPlan {
  int64_t at = std::numeric_limits<int64_t>::max();  // Number of the call that fails.
  FaultKind kind = FaultKind::kIoError;
};

class FaultyFileSystem final : public FileSystem {
 public:
  // REQUIRES: `inner` outlives this object.
  FaultyFileSystem(FileSystem& inner, FaultPlan plan) : inner_(inner), plan_(plan) {}

  // Calls made so far.
  int64_t calls() const { return calls_.load(); }

  absl::StatusOr<int> Create(const std::string& path, int mode) override;
  absl::Status Allocate(int handle, uint64_t bytes) override;
  absl::StatusOr<size_t> Write(int handle, absl::Span<const std::byte> data) override;
  absl::StatusOr<size_t> WriteHeld(int handle, absl::Span<const std::byte> data) override;
  bool Collects(int handle) override { return inner_.Collects(handle); }
  void EndWriting(int handle) override { inner_.EndWriting(handle); }
  absl::Status Sync(int handle) override;
  absl::Status Close(int handle) override;
  absl::StatusOr<int> OpenForReading(const std::string& path, uint64_t* bytes) override;
  absl::StatusOr<size_t> ReadAt(int handle, uint64_t offset, absl::Span<std::byte> into) override;
  void DropCache(int handle) override { inner_.DropCache(handle); }
  void PassCache(int handle) override { inner_.PassCache(handle); }
  bool ReadsAhead() const override { return inner_.ReadsAhead(); }
  void ReadAhead(int handle, uint64_t offset, uint64_t bytes) override {
    inner_.ReadAhead(handle, offset, bytes);
  }
  absl::Status MakeDirectory(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::Status RenameNoReplace(const std::string& from, const std::string& to) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Unlink(const std::string& path) override;
  absl::Status RemoveDirectory(const std::string& path) override;
  absl::StatusOr<std::vector<Storage::Entry>> List(const std::string& path) override;
  std::optional<uint64_t> FreeBytes() override { return inner_.FreeBytes(); }
  std::string SlowerWrites() override { return inner_.SlowerWrites(); }
  std::string DisplayName(const std::string& path) const override {
    return inner_.DisplayName(path);
  }

 private:
  // Counts the call. OK if it is to succeed.
  absl::Status Next(const std::string& what);
  absl::StatusOr<size_t> WriteBy(bool held, int handle, absl::Span<const std::byte> data);

  FileSystem& inner_;
  const FaultPlan plan_;
  std::atomic<int64_t> calls_{0};
  std::atomic<bool> full_{false};
};

}  // namespace dtrain::checkpoint
