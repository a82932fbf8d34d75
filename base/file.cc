#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace dtrain {
namespace {

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) {
    return ".";
  }
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status WriteAndSync(UniqueFd fd, absl::string_view content, const std::string& path) {
  DT_RETURN_IF_ERROR(Annotate(WriteFully(fd.get(), content.data(), content.size()), path));
  if (fsync(fd.get()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("fsync ", path));
  }
  return Annotate(fd.Close(), path);
}

}  // namespace

absl::StatusOr<UniqueFd> OpenFile(const std::string& path, int flags, int mode) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC, mode);
  if (fd < 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot open ", path));
  }
  return UniqueFd(fd);
}

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t bytes_max) {
  DT_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, O_RDONLY));
  std::string content;
  char chunk[1 << 16];
  while (true) {
    const ssize_t n = read(fd.get(), chunk, sizeof(chunk));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return ErrnoStatus(errno, absl::StrCat("cannot read ", path));
    }
    if (n == 0) {
      return content;
    }
    content.append(chunk, static_cast<size_t>(n));
    if (content.size() > bytes_max) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("%s is longer than the %d bytes allowed here", path, bytes_max));
    }
  }
}

absl::Status WriteFully(int fd, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = write(fd, next, bytes);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return ErrnoStatus(errno, "write");
    }
    next += n;
    bytes -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status WriteFileAtomic(const std::string& path, absl::string_view content, int mode) {
  static std::atomic<int> counter{0};
  const std::string temporary =
      absl::StrFormat("%s.tmp.%d.%d", path, getpid(), counter.fetch_add(1));
  DT_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(temporary, O_WRONLY | O_CREAT | O_EXCL, mode));
  absl::Status status = WriteAndSync(std::move(fd), content, temporary);
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus(errno, absl::StrCat("cannot rename to ", path));
  }
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  return FsyncDirectory(DirectoryOf(path));
}

absl::Status FsyncDirectory(const std::string& directory) {
  DT_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(directory, O_RDONLY | O_DIRECTORY));
  // EINVAL: the file system has no fsync for folders.
  if (fsync(fd.get()) != 0 && errno != EINVAL) {
    return ErrnoStatus(errno, absl::StrCat("fsync of directory ", directory));
  }
  return absl::OkStatus();
}

absl::Status MakeDirectories(const std::string& path, int mode) {
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string prefix = path.substr(0, slash);
    if (mkdir(prefix.c_str(), static_cast<mode_t>(mode)) != 0 && errno != EEXIST) {
      return ErrnoStatus(errno, absl::StrCat("cannot create directory ", prefix));
    }
    if (slash == std::string::npos) {
      break;
    }
  }
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " exists and is not a directory"));
  }
  return absl::OkStatus();
}

std::string WorkingDirectory() {
  std::error_code gone;
  return std::filesystem::current_path(gone).string();
}

bool FileExists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

}  // namespace dtrain
