// The memory in which saves beside training keep their copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace dtrain::checkpoint {

inline constexpr uint64_t kSegmentBytes = uint64_t{4} << 20;

// Blocks of kSegmentBytes, kept from one save to the next. Thread-safe.
class StagingPool {
 public:
  // `bytes_max`: of all blocks together; room for one is always there.
  explicit StagingPool(uint64_t bytes_max);

  // Makes blocks until they hold `bytes`, as far as the pool may, and touches their pages: a page's
  // first touch costs more than a copy into it, most of all on a virtual machine whose host has to
  // find the memory. For a thread that has the time. Returns early after EndFilling.
  void Fill(uint64_t bytes);
  void EndFilling();

  // Null: all are in use.
  std::byte* Take();
  void Return(std::byte* block);
  uint64_t bytes_max() const { return blocks_max_ * kSegmentBytes; }
  // Whether so many bytes are more than the blocks hold, as far as that is known.
  bool is_short_for(uint64_t bytes) const;
  // Bytes of all blocks that were made.
  uint64_t bytes() const;

 private:
  struct Unmap {
    void operator()(std::byte* block) const;
  };
  using Block = std::unique_ptr<std::byte[], Unmap>;
  // Adds a block; null where there may be no more, or no memory for it.
  std::byte* MakeBlock();  // REQUIRES: mutex_ is held.

  const size_t blocks_max_;
  mutable std::mutex mutex_;
  std::vector<Block> blocks_;
  std::vector<std::byte*> free_;
  bool lacks_memory_ = false;  // A block could not be made.
  bool fills_ = true;
};

}  // namespace dtrain::checkpoint
