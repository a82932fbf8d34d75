#include "checkpoint/storage/write_blocks.h"

#include <sys/mman.h>

#include <new>

#include "checkpoint/storage/write_queue.h"

namespace dtrain::checkpoint {
namespace {

constexpr std::align_val_t kAlignment{size_t{2} << 20};  // A huge page's.
// A save writes two files side by side, each with so many under way.
constexpr size_t kKeptMax = 2 * kWriteSlots;

}  // namespace

WriteBlocks::~WriteBlocks() {
  for (std::byte* const block : kept_) {
    ::operator delete(block, kAlignment);
  }
}

WriteBlocks::Block WriteBlocks::Take() {
  {
    const std::lock_guard lock(mutex_);
    if (!kept_.empty()) {
      std::byte* const block = kept_.back();
      kept_.pop_back();
      return Block(block, {this});
    }
  }
  void* const block = ::operator new(kWriteBlockBytes, kAlignment);
  // A hint: fewer page faults, and fewer pieces of which a disk is told in each write.
  madvise(block, kWriteBlockBytes, MADV_HUGEPAGE);
  return Block(static_cast<std::byte*>(block), {this});
}

void WriteBlocks::Keep(std::byte* block) {
  {
    const std::lock_guard lock(mutex_);
    if (kept_.size() < kKeptMax) {
      kept_.push_back(block);
      return;
    }
  }
  ::operator delete(block, kAlignment);
}

}  // namespace dtrain::checkpoint
