#include "runtime/plan/data/data_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status.h"

namespace dtrain::plan {

absl::StatusOr<DataFile> DataFile::Open(const std::string& path, absl::string_view kind,
                                        DataStore* store) {
  DataFile file;
  if (IsRemoteAddress(path)) {
    file.kind_ = std::string(kind);
    file.path_ = path;
    if (store == nullptr) {
      return file.Bad("only a training reads files at addresses; copy it to this host first");
    }
    absl::StatusOr<std::shared_ptr<const RemoteFile>> remote = store->Open(path);
    if (!remote.ok()) {
      return Annotate(remote.status(), kind);
    }
    file.remote_ = *std::move(remote);
    file.bytes_ = file.remote_->bytes();
    return file;
  }
  absl::StatusOr<UniqueFd> fd = OpenFile(path, O_RDONLY | O_NONBLOCK);  // Not a FIFO.
  if (!fd.ok()) {
    return Annotate(fd.status(), kind);
  }
  file.kind_ = std::string(kind);
  file.path_ = path;
  file.fd_ = *std::move(fd);
  struct stat info {};
  if (fstat(file.fd_.get(), &info) != 0) {
    return ErrnoStatus(errno, absl::StrFormat("%s %s", kind, path));
  }
  if (!S_ISREG(info.st_mode)) {
    return file.Bad("it is not a regular file");
  }
  file.bytes_ = static_cast<int64_t>(info.st_size);
  return file;
}

absl::Status DataFile::Bad(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrFormat("%s %s: %s", kind_, path_, what));
}

absl::StatusOr<std::string> DataFile::Head(int64_t bytes_max) const {
  std::string head(static_cast<size_t>(std::min(bytes_, bytes_max)), '\0');
  DT_RETURN_IF_ERROR(ReadAt(0, absl::MakeSpan(head)));
  return head;
}

absl::Status DataFile::ReadAt(int64_t offset, absl::Span<char> into) const {
  if (remote_ != nullptr) {
    return Annotate(remote_->ReadAt(offset, into), kind_);
  }
  size_t done = 0;
  while (done < into.size()) {
    const int64_t at = offset + static_cast<int64_t>(done);
    const ssize_t n = pread(fd_.get(), into.data() + done, into.size() - done, at);
    if (n < 0 && errno != EINTR) {
      const int error = errno;
      return ErrnoStatus(error, absl::StrFormat("%s %s: cannot read %d bytes at byte %d", kind_,
                                                path_, into.size() - done, at));
    }
    if (n == 0) {
      return EndedEarly();
    }
    done += n > 0 ? static_cast<size_t>(n) : 0;
  }
  return absl::OkStatus();
}

bool DataFile::WillRead(int64_t offset, int64_t bytes) const {
  return remote_ == nullptr || remote_->WillRead(offset, bytes);
}

absl::Status DataFile::EndedEarly() const {
  struct stat info {};
  const int64_t now = fstat(fd_.get(), &info) == 0 ? static_cast<int64_t>(info.st_size) : -1;
  return Bad(
      absl::StrFormat("it had %d bytes when it was opened and has %d while it is read: it "
                      "was cut or is written anew; restore it and start again, and replace "
                      "such files by renaming, never in place",
                      bytes_, now));
}

}  // namespace dtrain::plan
