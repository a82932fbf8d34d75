#include "runtime/offload/mapped_file.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/offload/nameless_file.h"

namespace dtrain {

absl::StatusOr<MappedFile> MappedFile::Create(const std::string& folder, size_t bytes,
                                              absl::string_view setting) {
  DT_ASSIGN_OR_RETURN(UniqueFd file, OpenNamelessFile(folder, setting));
  // A page of a hole would fault into a full disk while it is written through the mapping.
  const size_t size = std::max<size_t>(1, bytes);
  DT_RETURN_IF_ERROR(ReserveBlocks(file, static_cast<int64_t>(size), folder, setting));
  void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) {
    return ErrnoStatus(errno,
                       absl::StrFormat("%s \"%s\": mapping %d bytes", setting, folder, bytes));
  }
  return MappedFile(std::move(file), data, size);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

}  // namespace dtrain
