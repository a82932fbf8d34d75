#include "checkpoint/storage/write_blocks.h"

#include <new>

#include "checkpoint/storage/storage.h"
#include "checkpoint/storage/write_queue.h"

namespace dtrain::checkpoint {
namespace {

constexpr std::align_val_t kAlignment{kHeldAlignment};
// One file has so many under way, and files are seldom written side by side.
constexpr size_t kKeptMax = kWriteSlots;

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
  return Block(static_cast<std::byte*>(::operator new(kWriteBlockBytes, kAlignment)), {this});
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
