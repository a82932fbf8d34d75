// Reads the blocks of a file on several threads, so that the storage has several reads at a time
// and hashes are computed beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/threads/bounded_queue.h"
#include "base/threads/worker.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

inline constexpr size_t kReaders = 4;
// Fewer blocks are read by the caller alone, because starting threads would take longer.
inline constexpr uint64_t kSharedBlocksMin = 3;

// Gives a file's blocks of kBlockBytes (format/checksum.h) in order. Takes memory for kReaders of
// them. Used by one thread.
class BlockReader {
 public:
  // Reads the first `bytes` bytes. REQUIRES: `file` outlives this object.
  BlockReader(const ReadableFile& file, uint64_t bytes);
  BlockReader(const BlockReader&) = delete;
  BlockReader& operator=(const BlockReader&) = delete;
  ~BlockReader() = default;

  // The next block, a piece of the caller's work; the last one may be shorter. Its bytes are valid
  // until the next call. REQUIRES: there is one, and no call has failed.
  absl::StatusOr<absl::Span<const std::byte>> Next();

 private:
  struct FreeBlock {
    void operator()(std::byte* block) const;
  };
  struct Lane {  // Reads every kReaders-th block.
    std::unique_ptr<std::byte, FreeBlock> block;
    BoundedQueue<absl::Status> ended{1};
    std::unique_ptr<Worker> thread;  // Ends first.
  };

  absl::Span<std::byte> Place(uint64_t block) const;
  void Start(uint64_t block);

  const ReadableFile& file_;
  const uint64_t bytes_;
  const uint64_t blocks_;
  uint64_t next_ = 0;
  uint64_t started_ = 0;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

// Calls body(0) to body(count - 1) on up to `threads` threads, of which the caller is one. Gives
// the error with the lowest number; after an error no new call begins. All calls are work of the
// caller (base/threads/work_count.h), and each is a piece of it.
absl::Status ForEachAtOnce(uint64_t count, absl::FunctionRef<absl::Status(uint64_t)> body,
                           size_t threads = kReaders);

}  // namespace dtrain::checkpoint
