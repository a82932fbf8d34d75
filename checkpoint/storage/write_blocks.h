// Aligned blocks of memory from which files are written, kept from one file to the next: memory
// that is new to the process costs a page fault for each page, and a virtual machine more.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace dtrain::checkpoint {

inline constexpr size_t kWriteBlockBytes = 4 << 20;

// Thread-safe.
class WriteBlocks {
 public:
  // Gives a block back, or frees it where enough are kept.
  struct Return {
    WriteBlocks* blocks = nullptr;
    void operator()(std::byte* block) const { blocks->Keep(block); }
  };
  using Block = std::unique_ptr<std::byte, Return>;

  WriteBlocks() = default;
  WriteBlocks(const WriteBlocks&) = delete;
  WriteBlocks& operator=(const WriteBlocks&) = delete;
  ~WriteBlocks();

  // A block of kWriteBlockBytes with any contents. REQUIRES: this object outlives it.
  Block Take();

 private:
  void Keep(std::byte* block);

  std::mutex mutex_;
  std::vector<std::byte*> kept_;
};

}  // namespace dtrain::checkpoint
