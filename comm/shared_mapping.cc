#include "comm/shared_mapping.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status.h"
#include "base/system/available_memory.h"

namespace dtrain::comm {
namespace {

std::atomic<int64_t> pool_bytes{0};

constexpr unsigned kHugePages = MFD_HUGETLB | 21U << 26;  // MFD_HUGE_2MB, which older headers lack.

// The value `name` of the pool of 2 MiB pages; 0 if it cannot be read.
size_t PoolNumber(absl::string_view name) {
  size_t number = 0;
  const auto text = ReadFile(absl::StrCat("/sys/kernel/mm/hugepages/hugepages-2048kB/", name));
  return text.ok() && absl::SimpleAtoi(*text, &number) ? number : 0;
}

// Whether the pool has `pages` that nobody has taken or reserved. Pages that the kernel may add
// (vm.nr_overcommit_hugepages) come from ordinary memory and are not counted; CheckMemory judges
// that.
bool PoolHas(size_t pages) {
  return PoolNumber("free_hugepages") >= PoolNumber("resv_hugepages") + pages;
}

// The page size of a segment in the pool's huge pages; 0: it has ordinary pages.
size_t PoolPageBytes(int fd) {
  struct statfs info {};
  return fstatfs(fd, &info) == 0 && info.f_type == HUGETLBFS_MAGIC
             ? static_cast<size_t>(info.f_bsize)
             : 0;
}

size_t WholePages(size_t bytes, size_t page) { return (bytes + page - 1) / page * page; }

// `bytes` rounded up to whole pages of the kind that `fd` has.
size_t SegmentBytes(int fd, size_t bytes) {
  const size_t page = PoolPageBytes(fd);
  return page == 0 ? bytes : WholePages(bytes, page);
}

absl::StatusOr<UniqueFd> CreateSealed(size_t bytes, absl::string_view name, unsigned flags) {
  const std::string label = absl::StrCat("dtrain:", name.substr(0, 200));
  UniqueFd fd(memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
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

// Backs every page with memory. Gives 0 or the error number.
int Populate(const SharedMapping& mapping, int fd) {
  // Through the mapping the kernel can use huge pages, which fallocate cannot.
  if (madvise(mapping.data(), mapping.bytes(), MADV_POPULATE_WRITE) == 0) {
    return 0;
  }
  // Before Linux 5.14 the call gives EINVAL.
  return errno == EINVAL ? posix_fallocate(fd, 0, static_cast<off_t>(mapping.bytes())) : errno;
}

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
    pool_bytes -= of_pool_ ? static_cast<int64_t>(bytes_) : 0;
  }
}

absl::StatusOr<SharedMapping> SharedMapping::Map(int fd, size_t bytes, absl::string_view what) {
  if (const size_t page = PoolPageBytes(fd); page != 0) {
    const size_t whole = WholePages(bytes, page);
    // The kernel aligns huge pages itself; the call fails if the pool has too few.
    void* const data = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
      return ErrnoStatus(errno, absl::StrCat("mapping ", whole, " bytes of huge pages of ", what));
    }
    pool_bytes += static_cast<int64_t>(whole);
    return SharedMapping(static_cast<char*>(data), whole, /*of_pool=*/true);
  }
  // Huge pages need an aligned address: reserve more, map the segment inside, unmap the rest.
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
    madvise(start, bytes, MADV_HUGEPAGE);  // A hint, refused on hosts without huge shared pages.
  }
  return SharedMapping(start, bytes, /*of_pool=*/false);
}

int64_t MappedPoolBytes() { return pool_bytes; }

absl::StatusOr<UniqueFd> CreateSharedSegment(size_t bytes, absl::string_view name) {
  return CreateSealed(bytes, name, /*flags=*/0);
}

absl::StatusOr<SharedSegment> CreateHugeSegment(size_t bytes, absl::string_view name) {
  const size_t whole = WholePages(bytes, kHugePageBytes);
  if (!PoolHas(whole / kHugePageBytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the host's pool has no ", whole / kHugePageBytes, " free huge pages"));
  }
  DT_ASSIGN_OR_RETURN(UniqueFd fd, CreateSealed(whole, name, kHugePages));
  DT_ASSIGN_OR_RETURN(SharedMapping mapping, SharedMapping::Map(fd.get(), bytes, name));
  // The cgroup's limit or a memory policy may refuse pages that the pool has.
  if (const int error = Populate(mapping, fd.get()); error != 0) {
    return ErrnoStatus(error, absl::StrCat("backing ", name, " with huge pages"));
  }
  return SharedSegment{std::move(fd), std::move(mapping)};
}

absl::Status CheckSegment(int fd, size_t bytes, absl::string_view peer) {
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    return ErrnoStatus(errno, absl::StrCat("looking at the memory of ", peer));
  }
  if (static_cast<size_t>(info.st_size) != SegmentBytes(fd, bytes)) {
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
  switch (const int error = Populate(mapping, fd)) {
    case 0:
      return absl::OkStatus();
    case ENOSPC:
    case ENOMEM:
    case EFAULT:  // Touching the pages would have raised SIGBUS.
      return NotEnoughMemory(mapping.bytes(), name, ReadAvailableMemory());
    default:
      return ErrnoStatus(error, absl::StrCat("backing ", name, " with memory"));
  }
}

}  // namespace dtrain::comm
