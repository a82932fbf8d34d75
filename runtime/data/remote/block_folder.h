// Blocks of remote objects in a folder of this host, which the processes of one user share.
//
// A block is a file of its own, FOLDER/<object>/<number>: its bytes, then their CRC-32C. It is
// written under another name and renamed, so a killed process leaves whole blocks or none; the
// checksum, compared when a process first reads a block, finds what a lost host left behind. Blocks
// that were not read for longest leave when there are more bytes than there may be. Nothing else in
// the folder is touched. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/unique_fd.h"
#include "runtime/data/remote/block_id.h"

namespace dtrain::remote {

class BlockFolder {
 public:
  // Makes the folder if it is not there. `bytes_max` 0: half of what is free on its disk, its own
  // blocks counted as free. FailedPrecondition: it cannot be written to.
  static absl::StatusOr<std::unique_ptr<BlockFolder>> Open(const std::string& folder,
                                                           int64_t bytes_max);

  const std::string& folder() const { return folder_; }
  int64_t bytes_max() const { return bytes_max_; }

  bool Has(const BlockId& id) const;
  // Fills `into` from `offset` of the block. NotFound: it is not there, or was damaged and is no
  // more. REQUIRES: the bytes are within the block.
  absl::Status Read(const BlockId& id, int64_t offset, absl::Span<std::byte> into);
  // Keeps a block. ResourceExhausted: the disk is full. REQUIRES: `block` is all of it.
  absl::Status Keep(const BlockId& id, absl::Span<const std::byte> block);
  // Waits until no other process fetches this block, or the deadline has passed, or StopWaiting is
  // called: then no lock is held. The lock ends with the descriptor.
  UniqueFd Lock(const BlockId& id, Deadline deadline) const;
  // No call waits for another process from now on.
  void StopWaiting() { stops_waiting_ = true; }

 private:
  BlockFolder(std::string folder, int64_t bytes_max)
      : folder_(std::move(folder)), bytes_max_(bytes_max) {}
  std::string PathOf(const BlockId& id) const;
  // The lock of the file FOLDER/locks/NAME, which its descriptor holds, and which so ends with its
  // process.
  UniqueFd LockFile(const std::string& name, Deadline deadline) const;
  absl::Status WriteNew(const BlockId& id, const std::string& path,
                        absl::Span<const std::byte> block) const;
  // Compares the checksum of an open block once for this process, and once more when as many bytes
  // were compared as the folder holds; false: it is damaged.
  bool Verify(const BlockId& id, int fd);
  void CountNew(int64_t bytes);
  void Trim() const;

  const std::string folder_;
  int64_t bytes_max_;
  std::atomic<bool> stops_waiting_{false};
  std::mutex mutex_;
  absl::flat_hash_set<BlockId> verified_;  // Guarded, as what follows.
  int64_t verified_bytes_ = 0;             // The size of these blocks.
  int64_t new_bytes_ = 0;                  // Written since the last look at the whole folder.
};

}  // namespace dtrain::remote
