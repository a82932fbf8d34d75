#include "runtime/offload/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain {
namespace {

// File systems that cannot make a file without a name get one whose name is removed at once.
UniqueFd NamelessFile(const std::string& folder) {
  UniqueFd file(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file.valid() && (errno == EOPNOTSUPP || errno == EISDIR)) {
    std::string name = folder + "/dtrain-XXXXXX";
    file = UniqueFd(mkostemp(name.data(), O_CLOEXEC));
    if (file.valid()) {
      unlink(name.c_str());
    }
  }
  return file;
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Create(const std::string& folder, size_t bytes,
                                              absl::string_view setting) {
  UniqueFd file = NamelessFile(folder);
  if (!file.valid()) {
    return ErrnoStatus(errno, absl::StrFormat("%s \"%s\": no file can be made there (want a folder "
                                              "that exists on every host)",
                                              setting, folder));
  }
  const size_t size = std::max<size_t>(1, bytes);
  // A page of a hole would fault into a full disk while it is written through the mapping.
  if (const int error = posix_fallocate(file.get(), 0, static_cast<off_t>(size)); error != 0) {
    return ErrnoStatus(error, absl::StrFormat("%s \"%s\": %d bytes cannot be reserved there",
                                              setting, folder, bytes));
  }
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
