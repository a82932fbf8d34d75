#include "checkpoint/storage/plain_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace dtrain::checkpoint {
namespace {

class PlainFile final : public ReadableFile {
 public:
  PlainFile(UniqueFd fd, uint64_t bytes, std::string path)
      : fd_(std::move(fd)), bytes_(bytes), path_(std::move(path)) {}

  uint64_t bytes() const override { return bytes_; }

  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> into) const override {
    size_t done = 0;
    while (done < into.size()) {
      const ssize_t n = pread(fd_.get(), into.data() + done, into.size() - done,
                              static_cast<off_t>(offset + done));
      if (n < 0 && errno != EINTR) {
        return ErrnoStatus(errno, absl::StrCat("cannot read ", path_));
      }
      if (n == 0) {
        return absl::OutOfRangeError(absl::StrCat(path_, " ends at byte ", offset + done, "; ",
                                                  into.size() - done, " more were expected"));
      }
      done += n > 0 ? static_cast<size_t>(n) : 0;
    }
    return absl::OkStatus();
  }

 private:
  const UniqueFd fd_;
  const uint64_t bytes_;
  const std::string path_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ReadableFile>> OpenPlainFile(const std::string& path) {
  // O_NONBLOCK: a FIFO in the place of a file must not block the open.
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot open ", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  return std::make_unique<PlainFile>(std::move(fd), static_cast<uint64_t>(info.st_size), path);
}

absl::StatusOr<std::string> ReadPlainFile(const std::string& path, uint64_t bytes_max) {
  DT_ASSIGN_OR_RETURN(const auto file, OpenPlainFile(path));
  if (file->bytes() > bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", file->bytes(), " bytes; at most ", bytes_max, " are allowed"));
  }
  std::string content(file->bytes(), '\0');
  DT_RETURN_IF_ERROR(file->ReadAt(
      0, absl::MakeSpan(reinterpret_cast<std::byte*>(content.data()), content.size())));
  return content;
}

}  // namespace dtrain::checkpoint
