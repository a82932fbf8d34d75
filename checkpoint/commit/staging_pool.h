// The memory in which saves beside training keep their copies. What the host cannot read is copied
// by the device that holds it (StagingDevice).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace dtrain::checkpoint {

inline constexpr uint64_t kSegmentBytes = uint64_t{4} << 20;

// Bytes in a device's memory, and where in a block they belong.
struct BlockPart {
  size_t at = 0;
  absl::Span<const std::byte> from;
};

// A device that copies what lies in its memory into blocks of the host's. Thread-safe.
class StagingDevice {
 public:
  virtual ~StagingDevice() = default;
  // A block of kSegmentBytes to which the device can copy; null: there is no memory for it.
  virtual std::byte* MakeBlock() = 0;
  // Frees a block, behind the copies to it.
  virtual void FreeBlock(std::byte* block) = 0;
  // Queues copies to `block`, behind those that were queued before, and does not wait for them.
  virtual absl::Status Copy(absl::Span<const BlockPart> parts, std::byte* block) = 0;
  // The same in the order of what the thread that trains queues, for bytes that its next work may
  // change. Called by that thread, or while it waits.
  virtual absl::Status CopyInOrder(absl::Span<const BlockPart> parts, std::byte* block) = 0;
  // Waits, for a bounded time, until all that was queued to `block` is there.
  virtual absl::Status Await(const std::byte* block) = 0;
};

// Blocks of kSegmentBytes, kept from one save to the next. Thread-safe.
class StagingPool {
 public:
  // `bytes_max`: of all blocks together; room for one is always there. `device`: makes the blocks;
  // null: they are ordinary memory.
  explicit StagingPool(uint64_t bytes_max, std::shared_ptr<StagingDevice> device = nullptr);

  // Makes blocks until they hold `bytes`, as far as the pool may, and touches their pages: a page's
  // first touch costs more than a copy into it, most of all on a virtual machine whose host has to
  // find the memory. For a thread that has the time. Returns early after EndFilling.
  void Fill(uint64_t bytes);
  // When it returns, no Fill holds a block: all that were made can be taken.
  void EndFilling();

  // Null: all are in use.
  std::byte* Take();
  void Return(std::byte* block);
  // One more block, made at the first call, through which a device's memory is read when the others
  // are in use. Null: there is no memory for it. For one thread.
  std::byte* Spare();
  StagingDevice* device() const { return device_.get(); }  // Null: there is none.
  uint64_t bytes_max() const { return blocks_max_ * kSegmentBytes; }
  // Whether so many bytes are more than the blocks hold, as far as that is known. Does not wait
  // while a block is made.
  bool is_short_for(uint64_t bytes) const;
  // Bytes of all blocks that were made.
  uint64_t bytes() const;

 private:
  struct Free {
    StagingDevice* device;
    void operator()(std::byte* block) const;
  };
  using Block = std::unique_ptr<std::byte[], Free>;
  // Adds a block; null where there may be no more, or no memory for it.
  std::byte* MakeBlock();  // REQUIRES: mutex_ is held.

  const size_t blocks_max_;
  const std::shared_ptr<StagingDevice> device_;
  std::mutex filling_;  // Held by Fill; taken before mutex_.
  mutable std::mutex mutex_;
  std::vector<Block> blocks_;
  Block spare_;
  std::vector<std::byte*> free_;
  std::atomic<bool> lacks_memory_{false};  // A block could not be made.
  bool fills_ = true;
};

}  // namespace dtrain::checkpoint
