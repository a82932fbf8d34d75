// Fetches blocks of remote objects: those that a reader waits for, and ahead of it those that it
// will read.
//
// Blocks are kept in a folder of this host, or, where there is none or its disk is full, in a
// little memory. Each block is fetched once at a time, by one process of the host. Thread-safe;
// destruction waits for the requests under way, which its owner cancels.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/data/remote/block_folder.h"
#include "runtime/data/remote/block_id.h"

namespace dtrain::remote {

struct FetcherOptions {
  int threads = 8;
  int64_t memory_bytes_max = 64 << 20;  // Blocks in memory take this, where there is no folder.
  // Blocks in the folder that wait to be read take this, and with those of the other processes
  // that share the folder no more than a quarter of it.
  int64_t ahead_bytes_max = int64_t{1} << 30;
  int processes = 1;            // So many fetch ahead into the folder.
  size_t seen_max = 64 * 1024;  // Remembers so many blocks that were there already.
};

class BlockFetcher {
 public:
  // Fills the span with a whole block from its server.
  using Fetch = std::function<absl::Status(const BlockId& id, absl::Span<std::byte> into)>;
  // `folder` null: blocks are kept in memory.
  BlockFetcher(FetcherOptions options, std::unique_ptr<BlockFolder> folder, Fetch fetch);
  BlockFetcher(const BlockFetcher&) = delete;
  BlockFetcher& operator=(const BlockFetcher&) = delete;
  ~BlockFetcher();

  // Fills `into` from `offset` of a block. Blocks until that is there; errors are those of Fetch.
  absl::Status Read(const BlockId& id, int64_t offset, absl::Span<std::byte> into);
  // Fetches a block soon; never waits for it. False: enough blocks wait to be read.
  bool WillRead(const BlockId& id);
  // No block is fetched ahead but for those under way.
  void ForgetAhead();
  // Nothing is fetched any more, and who waits for another process gives up: Read of a block that
  // is not kept gives Cancelled. Requests under way are their owner's to cancel.
  void Cancel();

 private:
  using Bytes = std::shared_ptr<const std::byte[]>;
  using Memory = std::deque<std::pair<BlockId, Bytes>>;
  struct Flight {
    bool done = false;
    absl::Status status;
  };

  BlockFolder* folder() const { return folder_works_ ? folder_.get() : nullptr; }
  bool IsCancelled() {
    const std::lock_guard lock(mutex_);
    return stop_;
  }
  // The bytes of blocks ahead that may wait to be read, where `id` is the next one.
  int64_t AheadBytesMax(const BlockId& id) const;
  // The block in memory, or the end. REQUIRES: `mutex_` is held.
  Memory::iterator InMemory(const BlockId& id);
  // Fills `into` from where blocks are kept; NotFound: the block is not there.
  absl::Status ReadKept(const BlockId& id, int64_t offset, absl::Span<std::byte> into);
  // Fetches a block and keeps it. REQUIRES: this thread has its entry in flights_.
  absl::StatusOr<Bytes> FetchAndKeep(const BlockId& id);
  void Keep(const BlockId& id, const Bytes& block);
  void KeepInMemory(const BlockId& id, const Bytes& block);
  // Ends the flight of a block and wakes who waits for it.
  void Land(const BlockId& id, const absl::Status& status);
  void FetchAhead();

  const FetcherOptions options_;
  const std::unique_ptr<BlockFolder> folder_;
  const Fetch fetch_;
  std::atomic<bool> folder_works_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded, as all that follows: blocks on their way, those wanted next, those that were wanted
  // and not read yet, those that were seen in the folder, and those in memory, the oldest first.
  absl::flat_hash_map<BlockId, std::shared_ptr<Flight>> flights_;
  std::deque<BlockId> wanted_;
  absl::flat_hash_set<BlockId> ahead_;
  absl::flat_hash_set<BlockId> seen_;
  Memory memory_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace dtrain::remote
