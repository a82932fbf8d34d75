#include "checkpoint/commit/staging_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace dtrain::checkpoint {
namespace {

void Touch(std::byte* block) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t at = 0; at < kSegmentBytes; at += page) {
    const_cast<volatile std::byte*>(block)[at] = std::byte{0};
  }
}

// Null: there is no memory for it.
std::byte* NewBlock(StagingDevice* device) {
  if (device != nullptr) {
    return device->MakeBlock();
  }
  void* const data =
      mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return nullptr;
  }
  madvise(data, kSegmentBytes, MADV_HUGEPAGE);  // A hint: fewer page faults.
  return static_cast<std::byte*>(data);
}

}  // namespace

StagingPool::StagingPool(uint64_t bytes_max, std::shared_ptr<StagingDevice> device)
    : blocks_max_(std::max<uint64_t>(1, bytes_max / kSegmentBytes)), device_(std::move(device)) {}

void StagingPool::Free::operator()(std::byte* block) const {
  if (device != nullptr) {
    device->FreeBlock(block);
  } else {
    munmap(block, kSegmentBytes);
  }
}

std::byte* StagingPool::MakeBlock() {
  if (blocks_.size() == blocks_max_) {
    return nullptr;
  }
  std::byte* const block = NewBlock(device_.get());
  lacks_memory_ = block == nullptr;
  if (lacks_memory_) {  // It is as if the pool were smaller.
    return nullptr;
  }
  blocks_.emplace_back(block, Free{device_.get()});
  return block;
}

std::byte* StagingPool::Spare() {
  const std::lock_guard lock(mutex_);
  if (spare_ == nullptr) {
    spare_ = Block(NewBlock(device_.get()), Free{device_.get()});
  }
  return spare_.get();
}

void StagingPool::Fill(uint64_t bytes) {
  const std::lock_guard filling(filling_);
  while (true) {
    std::byte* block = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (!fills_ || blocks_.size() * kSegmentBytes >= bytes) {
        return;
      }
      block = MakeBlock();
    }
    if (block == nullptr) {
      return;
    }
    Touch(block);
    Return(block);
  }
}

void StagingPool::EndFilling() {
  {
    const std::lock_guard lock(mutex_);
    fills_ = false;
  }
  const std::lock_guard filling(filling_);  // At most one block is still touched.
}

std::byte* StagingPool::Take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    return MakeBlock();
  }
  std::byte* const block = free_.back();
  free_.pop_back();
  return block;
}

void StagingPool::Return(std::byte* block) {
  const std::lock_guard lock(mutex_);
  free_.push_back(block);
}

bool StagingPool::is_short_for(uint64_t bytes) const {
  return lacks_memory_ || bytes_max() < bytes;
}

uint64_t StagingPool::bytes() const {
  const std::lock_guard lock(mutex_);
  return blocks_.size() * kSegmentBytes;
}

}  // namespace dtrain::checkpoint
