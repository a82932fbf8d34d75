#include "comm/nccl/fake/fake_addresses.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace dtrain::comm {
namespace {

constexpr auto kNoMemory = static_cast<CudaResult>(2);  // cudaErrorMemoryAllocation.

bool Multiple(const void* data, size_t bytes) {
  return bytes > 0 &&
         (reinterpret_cast<uintptr_t>(data) | bytes) % FakeAddresses::kGranularity == 0;
}

// The last of `ranges` that begins at or before `data`, or ranges.end().
template <class Map>
typename Map::const_iterator Before(const Map& ranges, const void* data) {
  auto after = ranges.upper_bound(static_cast<char*>(const_cast<void*>(data)));
  return after == ranges.begin() ? ranges.end() : --after;
}

void* Reserved(void* data, size_t bytes) {
  const int fixed = data != nullptr ? MAP_FIXED : 0;
  return mmap(data, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
}

}  // namespace

FakeAddresses::~FakeAddresses() {
  for (const auto& [data, bytes] : reserved_) {
    munmap(data, bytes);
  }
  for (const auto& [handle, memory] : memory_) {
    close(memory.file);
  }
}

CudaResult FakeAddresses::Reserve(void** data, size_t bytes) {
  if (!Multiple(nullptr, bytes)) {
    return CudaResult::kInvalidValue;
  }
  *data = Reserved(nullptr, bytes);
  if (*data == MAP_FAILED) {
    return kNoMemory;
  }
  const std::lock_guard lock(mutex_);
  reserved_.emplace(static_cast<char*>(*data), bytes);
  return CudaResult::kSuccess;
}

CudaResult FakeAddresses::Free(void* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = reserved_.find(static_cast<char*>(data));
  const auto mapped = mapped_.lower_bound(static_cast<char*>(data));
  if (found == reserved_.end() || found->second != bytes ||
      (mapped != mapped_.end() && mapped->first < found->first + bytes)) {
    return CudaResult::kInvalidValue;
  }
  munmap(data, bytes);
  reserved_.erase(found);
  return CudaResult::kSuccess;
}

CudaResult FakeAddresses::Create(CudaMemory** memory, size_t bytes) {
  if (!Multiple(nullptr, bytes)) {
    return CudaResult::kInvalidValue;
  }
  const std::lock_guard lock(mutex_);
  if (bytes > limit_ - created_) {
    return kNoMemory;
  }
  const int file = memfd_create("dtrain-fake-gpu", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    close(file);
    return kNoMemory;
  }
  created_ += bytes;
  *memory = reinterpret_cast<CudaMemory*>(static_cast<uintptr_t>(file) + 1);
  memory_[*memory] = {file, bytes, false};
  return CudaResult::kSuccess;
}

CudaResult FakeAddresses::Destroy(CudaMemory* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = memory_.find(memory);
  if (found == memory_.end() || found->second.mapped) {
    return CudaResult::kInvalidValue;
  }
  created_ -= found->second.bytes;
  close(found->second.file);
  memory_.erase(found);
  return CudaResult::kSuccess;
}

CudaResult FakeAddresses::Map(void* data, size_t bytes, CudaMemory* memory) {
  const std::lock_guard lock(mutex_);
  auto* const begin = static_cast<char*>(data);
  const auto range = Before(reserved_, data);
  const auto found = memory_.find(memory);
  const auto other = Before(mapped_, begin + bytes - 1);
  if (!Multiple(data, bytes) || range == reserved_.end() ||
      begin + bytes > range->first + range->second || found == memory_.end() ||
      found->second.mapped || bytes > found->second.bytes ||
      (other != mapped_.end() && other->first + other->second.bytes > begin)) {
    return CudaResult::kInvalidValue;
  }
  if (mmap(data, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, found->second.file, 0) ==
      MAP_FAILED) {
    return kNoMemory;
  }
  found->second.mapped = true;
  mapped_[begin] = {bytes, memory};
  return CudaResult::kSuccess;
}

CudaResult FakeAddresses::Unmap(void* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = mapped_.find(static_cast<char*>(data));
  if (found == mapped_.end() || found->second.bytes != bytes ||
      Reserved(data, bytes) == MAP_FAILED) {
    return CudaResult::kInvalidValue;
  }
  memory_[found->second.memory].mapped = false;
  mapped_.erase(found);
  ++unmaps_;
  return CudaResult::kSuccess;
}

void FakeAddresses::Limit(size_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
}

bool FakeAddresses::IsMapped(const void* data, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto found = Before(mapped_, data);
  return found != mapped_.end() &&
         static_cast<const char*>(data) + bytes <= found->first + found->second.bytes;
}

int FakeAddresses::unmaps() const {
  const std::lock_guard lock(mutex_);
  return unmaps_;
}

int FakeAddresses::live_handles() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(reserved_.size() + memory_.size());
}

}  // namespace dtrain::comm
