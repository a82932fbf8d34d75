#include "runtime/offload/mapped_file.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/offload/nameless_file.h"

namespace dtrain {

absl::StatusOr<MappedFile> MappedFile::Create(const std::string& folder, size_t bytes,
                                              absl::string_view setting, size_t near_bytes) {
  DT_ASSIGN_OR_RETURN(UniqueFd file, OpenNamelessFile(folder, setting));
  // A page of a hole would fault into a full disk while it is written through the mapping.
  const size_t size = std::max<size_t>(1, bytes - near_bytes);
  DT_RETURN_IF_ERROR(ReserveBlocks(file, static_cast<int64_t>(size), folder, setting));
  // Addresses of all of it, over whose end the file is laid.
  void* const data = mmap(nullptr, near_bytes + size, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const auto failed = [&] {
    return ErrnoStatus(errno,
                       absl::StrFormat("%s \"%s\": mapping %d bytes", setting, folder, bytes));
  };
  if (data == MAP_FAILED) {
    return failed();
  }
  MappedFile all(std::move(file), data, near_bytes + size);
  void* const far = static_cast<std::byte*>(data) + near_bytes;
  if (mmap(far, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, all.fd(), 0) != far) {
    return failed();
  }
  all.fault_ = std::make_unique<FileFault>(
      far, size,
      absl::StrFormat("error: %s \"%s\": a page of a file of %d bytes cannot be read or written; "
                      "check the disk, or name a folder on another one",
                      setting, folder, size));
  return all;
}

MappedFile::~MappedFile() {
  fault_.reset();
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

}  // namespace dtrain
