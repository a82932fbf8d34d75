#include "comm/transport/rdma/staging.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain::comm {

absl::StatusOr<StagingMemory> StagingMemory::Create(size_t bytes) {
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrFormat("mapping %d bytes of RDMA staging memory", bytes));
  }
  madvise(data, bytes, MADV_HUGEPAGE);  // Only a hint.
  StagingMemory memory(static_cast<std::byte*>(data), bytes);
  if (madvise(data, bytes, MADV_DONTFORK) != 0) {
    return ErrnoStatus(errno, "keeping RDMA staging memory from children");
  }
  return memory;
}

StagingMemory::StagingMemory(StagingMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

StagingMemory::~StagingMemory() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

}  // namespace dtrain::comm
