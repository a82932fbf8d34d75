// Writes one large file with O_DIRECT, several blocks at once, while its owner computes the next.
//
// Bytes are copied into aligned blocks of 4 MiB, at most kWriteSlots of them, which a WriteQueue
// writes; a file's first block is smaller, so that the disk begins sooner. Memory that stays is
// written from where it is. The part of the last block that O_DIRECT cannot take goes through the
// page cache. Where the file system refuses O_DIRECT, when it is asked for or at a write, all
// blocks do. An error is returned by the call in whose course it is seen, and by all later ones,
// and nothing is synced after it. Used by one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "checkpoint/storage/write_blocks.h"
#include "checkpoint/storage/write_queue.h"

namespace dtrain::checkpoint {

class DirectFile {
 public:
  // `fd` is a new file of `size` bytes, all of them zeros, open for writing. It stays the caller's,
  // who closes it after Close. A size that is known ahead lets blocks be written side by side,
  // because none of them moves the file's end. `blocks` may serve other files too.
  DirectFile(int fd, uint64_t size, std::unique_ptr<WriteQueue> queue,
             std::shared_ptr<WriteBlocks> blocks = std::make_shared<WriteBlocks>());
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;
  ~DirectFile() = default;

  // Takes all of `data`; waits while all blocks are being written.
  absl::Status Append(absl::Span<const std::byte> data);
  // The same of memory that stays until Sync or Close has returned. What suits O_DIRECT of it, by
  // its place in memory and in the file, is not copied.
  absl::Status AppendHeld(absl::Span<const std::byte> data);
  // Nothing more is appended: begins to write the last block, which else waits for Sync.
  void EndAppending() { StartTail(); }
  // Waits until all is written, sets the file's size to what was appended, and fsyncs. fdatasync
  // would save nothing, because size and extents of a new file are to be made durable anyway.
  absl::Status Sync();
  // Waits for what is under way; an error changes nothing any more. REQUIRES: called once, last.
  void Close() { Drain(); }

  // Whether blocks go around the page cache.
  bool is_direct() const { return is_direct_; }

 private:
  struct Slot {
    WriteBlocks::Block block;
    const std::byte* from = nullptr;  // Its bytes: the block, or memory that stays.
    uint64_t offset = 0;              // Its place in the file.
    size_t bytes = 0;                 // To be written.
    size_t written = 0;               // So many of them are written.
    bool is_busy = false;             // A write is under way,
    bool is_direct = false;           // begun with O_DIRECT.
  };

  // A slot without a write, for what begins at the file's end; kWriteSlots: none after an error.
  size_t FreeSlot();
  // Sets current_ to one, with a block to fill.
  void TakeSlot();
  // Writes the slot's first `bytes`.
  void Write(size_t slot, size_t bytes);
  void StartRest(size_t slot);
  void WaitForOne();
  void Drain();
  // Begins to write what O_DIRECT takes of the current block.
  void StartTail();
  // Writes what the current block holds, and keeps it, because more may be appended.
  void WriteTail();
  void WriteThroughCache(uint64_t offset, absl::Span<const std::byte> data);
  void SetDirect(bool direct);
  void Fail(absl::Status status);

  const int fd_;
  const std::shared_ptr<WriteBlocks> blocks_;
  std::array<Slot, kWriteSlots> slots_;
  size_t current_ = kWriteSlots;  // Being filled; kWriteSlots: none.
  size_t filled_ = 0;             // Bytes in it.
  size_t room_ = 0;               // Bytes that it takes.
  size_t tail_ = 0;               // Bytes of it that StartTail has begun to write.
  size_t under_way_ = 0;
  uint64_t bytes_ = 0;  // Appended.
  uint64_t size_;       // The file is at least as large.
  bool is_direct_ = false;
  int retries_left_;
  absl::Status status_;
  std::unique_ptr<WriteQueue> queue_;  // Ends first.
};

}  // namespace dtrain::checkpoint
