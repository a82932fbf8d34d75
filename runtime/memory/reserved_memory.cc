#include "runtime/memory/reserved_memory.h"

#include <sys/mman.h>

#include <cerrno>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain {

absl::StatusOr<ReservedMemory> ReservedMemory::Create(size_t bytes) {
  void* const data =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return ErrnoStatus(
        errno,
        absl::StrFormat("reserve %d bytes of addresses for the weights (ulimit -v?)", bytes));
  }
  return ReservedMemory(static_cast<std::byte*>(data), bytes);
}

ReservedMemory::~ReservedMemory() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

absl::Status ReservedMemory::Protect(size_t offset, size_t bytes, int protection) {
  if (bytes > 0 && mprotect(data_ + offset, bytes, protection) != 0) {
    return ErrnoStatus(
        errno,
        absl::StrFormat("protect %d bytes of the weights' memory (vm.max_map_count?)", bytes));
  }
  return absl::OkStatus();
}

absl::Status ReservedMemory::Open(size_t offset, size_t bytes) {
  return Protect(offset, bytes, PROT_READ | PROT_WRITE);
}

absl::Status ReservedMemory::Close(size_t offset, size_t bytes) {
  return Protect(offset, bytes, PROT_NONE);
}

absl::Status ReservedMemory::Discard(size_t offset, size_t bytes) {
  if (bytes > 0 && madvise(data_ + offset, bytes, MADV_DONTNEED) != 0) {
    return ErrnoStatus(errno, absl::StrFormat("return %d bytes of the weights' memory", bytes));
  }
  return Close(offset, bytes);
}

}  // namespace dtrain
