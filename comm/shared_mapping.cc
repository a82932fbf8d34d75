#include "comm/shared_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/available_memory.h"
#include "base/status.h"

namespace dtrain::comm {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

absl::Status NotEnoughMemory(size_t needed, absl::string_view name, const AvailableMemory& memory) {
  const bool cgroup = memory.cgroup_bytes < memory.machine_bytes;
  return absl::ResourceExhaustedError(absl::StrFormat(
      "shared memory for \"%s\" needs %d bytes, %d are available %s: %suse fewer ranks a node, a "
      "smaller model or a higher ZeRO stage",
      name, needed, memory.bytes(), cgroup ? "within this cgroup's limit" : "on this host",
      cgroup ? "raise the limit, " : ""));
}

}  // namespace

SharedMapping::~SharedMapping() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

absl::StatusOr<SharedMapping> SharedMapping::Map(int fd, size_t bytes, absl::string_view what) {
  // Huge pages need an aligned address: reserve more, place the segment inside, give the rest back.
  const size_t slack = bytes >= kHugePageBytes ? kHugePageBytes : 0;
  void* reserved = mmap(nullptr, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("reserving ", bytes, " bytes of addresses for ", what));
  }
  char* const base = static_cast<char*>(reserved);
  const size_t ahead =
      slack == 0 ? 0 : (kHugePageBytes - reinterpret_cast<uintptr_t>(base)) % kHugePageBytes;
  char* const start = base + ahead;
  if (mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const int error = errno;
    munmap(reserved, bytes + slack);
    return ErrnoStatus(error, absl::StrCat("mapping ", bytes, " bytes of ", what));
  }
  if (slack != 0) {
    if (ahead != 0) {
      munmap(base, ahead);
    }
    const size_t page = 4096;
    const size_t used = (ahead + bytes + page - 1) / page * page;
    if (used < bytes + slack) {
      munmap(base + used, bytes + slack - used);
    }
    madvise(start, bytes, MADV_HUGEPAGE);  // A wish: refused on hosts without huge shared pages.
  }
  return SharedMapping(start, bytes);
}

absl::StatusOr<UniqueFd> CreateSharedSegment(size_t bytes, absl::string_view name) {
  const std::string label = absl::StrCat("dtrain:", name.substr(0, 200));
  UniqueFd fd(memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) {
    return ErrnoStatus(errno, absl::StrCat("memfd_create for ", name));
  }
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("sizing ", name, " to ", bytes, " bytes"));
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, absl::StrCat("sealing the size of ", name));
  }
  return fd;
}

absl::Status CheckSegment(int fd, size_t bytes, absl::string_view peer) {
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    return ErrnoStatus(errno, absl::StrCat("looking at the memory of ", peer));
  }
  if (static_cast<size_t>(info.st_size) != bytes) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s shares %d bytes, this rank expects %d: all ranks must run the same program", peer,
        info.st_size, bytes));
  }
  if ((fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) == 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("%s shares memory whose size is not sealed", peer));
  }
  return absl::OkStatus();
}

absl::Status CheckMemory(size_t bytes, absl::string_view name, const AvailableMemory& memory) {
  return bytes > static_cast<uint64_t>(memory.bytes()) ? NotEnoughMemory(bytes, name, memory)
                                                       : absl::OkStatus();
}

absl::Status CheckMemory(size_t bytes, absl::string_view name) {
  return CheckMemory(bytes, name, ReadAvailableMemory());
}

absl::Status ReserveMemory(const SharedMapping& mapping, int fd, absl::string_view name) {
  DT_RETURN_IF_ERROR(CheckMemory(mapping.bytes(), name));
  // Populating through the mapping is what lets the kernel use huge pages; fallocate cannot.
  if (madvise(mapping.data(), mapping.bytes(), MADV_POPULATE_WRITE) == 0) {
    return absl::OkStatus();
  }
  if (errno != EINVAL) {
    return NotEnoughMemory(mapping.bytes(), name, ReadAvailableMemory());
  }
  // Before Linux 5.14.
  const int error = posix_fallocate(fd, 0, static_cast<off_t>(mapping.bytes()));
  if (error == ENOSPC || error == ENOMEM) {
    return NotEnoughMemory(mapping.bytes(), name, ReadAvailableMemory());
  }
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, absl::StrCat("posix_fallocate ", name));
}

}  // namespace dtrain::comm
