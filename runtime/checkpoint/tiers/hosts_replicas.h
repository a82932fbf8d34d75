// The files by which hosts keep parts of each other: one that is written to a disk and to the
// memory of another host at once, and one of which only the memory is left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "checkpoint/storage/storage.h"

namespace dtrain {

// Whether the path is the step journal's folder or in it.
bool IsOfJournal(const std::string& path);

// A file on this host's disk and in the memory of the next host. The replica may fail, or be absent
// from the start: the file goes on without it. Used by one thread.
class ReplicatedFile final : public checkpoint::WritableFile {
 public:
  struct Replica {
    std::unique_ptr<checkpoint::WritableFile> file;       // May be null.
    std::function<void(const absl::Status& status)> end;  // Called once, when it fails.
    uint64_t bytes_max = UINT64_MAX;                      // It ends before it would be larger.
    // Sync waits for the replica too, as the file is read up to its last whole record.
    bool is_synced = false;
  };
  ReplicatedFile(std::unique_ptr<checkpoint::WritableFile> near, Replica replica)
      : near_(std::move(near)), replica_(std::move(replica)) {}

  absl::Status Append(absl::Span<const std::byte> data) override;
  absl::Status AppendHeld(absl::Span<const std::byte> data) override;
  void EndAppending() override { near_->EndAppending(); }
  absl::Status Sync() override;
  absl::Status Finish() override;

 private:
  // Its bytes travel while this disk writes.
  void Send(absl::Span<const std::byte> data);
  void Note(const absl::Status& status);

  const std::unique_ptr<checkpoint::WritableFile> near_;
  Replica replica_;
  uint64_t bytes_ = 0;  // Appended to the replica.
};

// A file that the memory of a host alone holds. To make it durable is to save it on a disk.
class LoneReplica final : public checkpoint::ReadableFile {
 public:
  using Save = std::function<absl::Status(const checkpoint::ReadableFile& file)>;
  LoneReplica(std::unique_ptr<checkpoint::ReadableFile> file, Save save)
      : file_(std::move(file)), save_(std::move(save)) {}

  uint64_t bytes() const override { return file_->bytes(); }
  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> into) const override {
    return file_->ReadAt(offset, into);
  }
  absl::Status MakeDurable() const override { return save_(*file_); }

 private:
  const std::unique_ptr<checkpoint::ReadableFile> file_;
  const Save save_;
};

}  // namespace dtrain
