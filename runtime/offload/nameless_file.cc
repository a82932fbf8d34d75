#include "runtime/offload/nameless_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain {
namespace {

absl::Status Failed(absl::string_view doing, absl::string_view what, int64_t offset,
                    const char* why) {
  return absl::UnavailableError(
      absl::StrFormat("%s %s at byte %d of their file: %s", doing, what, offset, why));
}

}  // namespace

absl::StatusOr<UniqueFd> OpenNamelessFile(const std::string& folder, absl::string_view setting) {
  UniqueFd file(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  // File systems that cannot make one get a file whose name is removed at once.
  if (!file.valid() && (errno == EOPNOTSUPP || errno == EISDIR)) {
    std::string name = folder + "/dtrain-XXXXXX";
    file = UniqueFd(mkostemp(name.data(), O_CLOEXEC));
    if (file.valid()) {
      unlink(name.c_str());
    }
  }
  if (!file.valid()) {
    return ErrnoStatus(errno, absl::StrFormat("%s \"%s\": no file can be made there (want a folder "
                                              "that exists on every host)",
                                              setting, folder));
  }
  return file;
}

absl::Status ReserveBlocks(const UniqueFd& file, int64_t bytes, const std::string& folder,
                           absl::string_view setting) {
  if (const int error = posix_fallocate(file.get(), 0, bytes); error != 0) {
    return ErrnoStatus(error, absl::StrFormat("%s \"%s\": %d bytes cannot be reserved there",
                                              setting, folder, bytes));
  }
  return absl::OkStatus();
}

absl::Status ReadAt(int fd, int64_t offset, absl::Span<std::byte> into, absl::string_view what) {
  while (!into.empty()) {
    const ssize_t got = pread(fd, into.data(), into.size(), offset);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return Failed("reading", what, offset,
                    got == 0 ? "it is shorter than it was made" : std::strerror(errno));
    }
    into.remove_prefix(static_cast<size_t>(got));
    offset += got;
  }
  return absl::OkStatus();
}

absl::Status WriteAt(int fd, int64_t offset, absl::Span<const std::byte> from,
                     absl::string_view what) {
  const int64_t begin = offset;
  const auto bytes = static_cast<int64_t>(from.size());
  while (!from.empty()) {
    const ssize_t put = pwrite(fd, from.data(), from.size(), offset);
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put <= 0) {
      return Failed("writing", what, offset, std::strerror(put == 0 ? ENOSPC : errno));
    }
    from.remove_prefix(static_cast<size_t>(put));
    offset += put;
  }
  sync_file_range(fd, begin, bytes, SYNC_FILE_RANGE_WRITE);
  return absl::OkStatus();
}

}  // namespace dtrain
