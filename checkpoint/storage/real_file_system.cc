#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/unique_fd.h"
#include "checkpoint/storage/direct_file.h"
#include "checkpoint/storage/file_system.h"
#include "checkpoint/storage/write_blocks.h"

namespace dtrain::checkpoint {
namespace {

constexpr size_t kReadAheadBytesMin = 1 << 20;
// A journal commits what several threads wait for at once.
constexpr size_t kSyncsAtOnce = 4;
// A system that reads so much ahead of a reader keeps a disk at work.
constexpr int kReadsAheadKb = 4096;

// Whether the system does so on the disk of `folder`. False where it does not say.
bool SystemReadsAhead(int folder) {
  struct stat info {};
  if (fstat(folder, &info) != 0) {
    return false;
  }
  const std::string device =
      absl::StrCat("/sys/dev/block/", major(info.st_dev), ":", minor(info.st_dev));
  int kilobytes = 0;
  for (const char* const of : {"", "/.."}) {  // A partition's is the whole disk's.
    const auto text = ReadFile(absl::StrCat(device, of, "/bdi/read_ahead_kb"), /*bytes_max=*/64);
    if (text.ok() && absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &kilobytes)) {
      break;
    }
  }
  return kilobytes >= kReadsAheadKb;
}

struct CloseDir {
  void operator()(DIR* directory) const { closedir(directory); }
};

class RealFileSystem final : public FileSystem {
 public:
  RealFileSystem(std::string directory, UniqueFd root)
      : directory_(std::move(directory)),
        root_(std::move(root)),
        reads_ahead_(SystemReadsAhead(root_.get())) {}

  absl::StatusOr<int> Create(const std::string& path, int mode) override {
    DT_ASSIGN_OR_RETURN(const Place place, Find(path));
    const int fd = openat(place.parent.get(), place.name.c_str(),
                          O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0) {
      return Error(errno, "cannot create", path);
    }
    return fd;
  }

  absl::Status Allocate(int handle, uint64_t bytes) override {
    // Without KEEP_SIZE a crash could leave a file of the right size full of zeros.
    while (bytes > 0 && fallocate(handle, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) != 0) {
      if (errno == EOPNOTSUPP || errno == ENOSYS) {
        break;
      }
      if (errno != EINTR) {
        return ErrnoStatus(errno, absl::StrCat("cannot reserve ", bytes, " bytes"));
      }
    }
    return bytes < kWriteBlockBytes ? absl::OkStatus() : WriteDirectly(handle, bytes);
  }

  absl::StatusOr<size_t> Write(int handle, absl::Span<const std::byte> data) override {
    if (DirectFile* const direct = FindDirect(handle); direct != nullptr) {
      DT_RETURN_IF_ERROR(direct->Append(data));
      return data.size();
    }
    while (true) {
      const ssize_t n = write(handle, data.data(), data.size());
      if (n >= 0) {
        return static_cast<size_t>(n);
      }
      if (errno != EINTR) {
        return ErrnoStatus(errno, "cannot write");
      }
    }
  }

  absl::StatusOr<size_t> WriteHeld(int handle, absl::Span<const std::byte> data) override {
    DirectFile* const direct = FindDirect(handle);
    if (direct == nullptr) {
      return Write(handle, data);
    }
    DT_RETURN_IF_ERROR(direct->AppendHeld(data));
    return data.size();
  }

  bool Collects(int handle) override { return FindDirect(handle) != nullptr; }
  void EndWriting(int handle) override {
    if (DirectFile* const direct = FindDirect(handle); direct != nullptr) {
      direct->EndAppending();
    }
  }

  absl::Status Sync(int handle) override {
    if (DirectFile* const direct = FindDirect(handle); direct != nullptr) {
      const absl::Status status = direct->Sync();
      const std::lock_guard lock(mutex_);
      refuses_direct_ = refuses_direct_ || !direct->is_direct();
      return status;
    }
    return fsync(handle) == 0 ? absl::OkStatus()
                              : ErrnoStatus(errno, "cannot make durable (fsync)");
  }

  size_t SyncsAtOnce() const override { return kSyncsAtOnce; }

  absl::Status Close(int handle) override {
    UniqueFd fd(handle);
    std::unique_ptr<DirectFile> direct;
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = direct_.find(handle); found != direct_.end()) {
        direct = std::move(found->second);
        direct_.erase(found);
      }
    }
    if (direct != nullptr) {
      direct->Close();
    }
    return fd.Close();
  }

  absl::StatusOr<int> OpenForReading(const std::string& path, uint64_t* bytes) override {
    DT_ASSIGN_OR_RETURN(const Place place, Find(path));
    // O_NONBLOCK: a FIFO in the place of a file must not block the open.
    UniqueFd fd(openat(place.parent.get(), place.name.c_str(),
                       O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!fd.valid()) {
      return errno == ELOOP ? absl::InvalidArgumentError(absl::StrCat(
                                  DisplayName(path), " is a symbolic link, not a file"))
                            : Error(errno, "cannot open", path);
    }
    struct stat info {};
    if (fstat(fd.get(), &info) != 0) {
      return Error(errno, "cannot stat", path);
    }
    if (!S_ISREG(info.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(DisplayName(path), " is not a regular file"));
    }
    *bytes = static_cast<uint64_t>(info.st_size);
    return fd.release();
  }

  absl::StatusOr<size_t> ReadAt(int handle, uint64_t offset, absl::Span<std::byte> into) override {
    size_t done = 0;
    // All at once; pread alone asks for a few 100 kB. What goes around the cache needs no more.
    if (into.size() >= kReadAheadBytesMin && !IsDirect(handle)) {
      ReadAhead(handle, offset, into.size());
    }
    bool is_refused = false;  // Another thread that reads the file may have ended O_DIRECT by now.
    while (done < into.size()) {
      const ssize_t n =
          pread(handle, into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINVAL && !std::exchange(is_refused, true)) {
        SetDirect(handle, false);  // This place, length or memory is not for O_DIRECT.
        ReadAhead(handle, offset + done, into.size() - done);
        continue;
      }
      if (n < 0 && errno != EINTR) {
        return ErrnoStatus(errno, "cannot read");
      }
      if (n == 0) {
        break;
      }
      done += n > 0 ? static_cast<size_t>(n) : 0;
    }
    return done;
  }

  void DropCache(int handle) override { posix_fadvise(handle, 0, 0, POSIX_FADV_DONTNEED); }
  void PassCache(int handle) override { SetDirect(handle, true); }
  bool ReadsAhead() const override { return reads_ahead_; }
  void ReadAhead(int handle, uint64_t offset, uint64_t bytes) override {
    posix_fadvise(handle, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                  POSIX_FADV_WILLNEED);
  }

  absl::Status MakeDirectory(const std::string& path) override {
    DT_ASSIGN_OR_RETURN(const Place place, Find(path));
    return mkdirat(place.parent.get(), place.name.c_str(), 0755) == 0
               ? absl::OkStatus()
               : Error(errno, "cannot create the folder", path);
  }

  absl::Status SyncDirectory(const std::string& path) override {
    DT_ASSIGN_OR_RETURN(const UniqueFd fd, OpenDirectory(path));
    // EINVAL: the file system has no fsync for folders.
    if (fsync(fd.get()) != 0 && errno != EINVAL) {
      return Error(errno, "cannot make durable (fsync) the folder", path);
    }
    return absl::OkStatus();
  }

  absl::Status RenameNoReplace(const std::string& from, const std::string& to) override {
    DT_ASSIGN_OR_RETURN(const Place source, Find(from));
    DT_ASSIGN_OR_RETURN(const Place target, Find(to));
    if (renameat2(source.parent.get(), source.name.c_str(), target.parent.get(),
                  target.name.c_str(), RENAME_NOREPLACE) == 0) {
      return absl::OkStatus();
    }
    if (errno != EINVAL && errno != ENOSYS) {
      return Error(errno, "cannot publish", to);
    }
    // For file systems without the flag: a link is as exclusive, but the old name may stay behind.
    if (linkat(source.parent.get(), source.name.c_str(), target.parent.get(), target.name.c_str(),
               0) != 0) {
      return Error(errno, "cannot publish", to);
    }
    unlinkat(source.parent.get(), source.name.c_str(), 0);
    return absl::OkStatus();
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    DT_ASSIGN_OR_RETURN(const Place source, Find(from));
    DT_ASSIGN_OR_RETURN(const Place target, Find(to));
    return renameat(source.parent.get(), source.name.c_str(), target.parent.get(),
                    target.name.c_str()) == 0
               ? absl::OkStatus()
               : Error(errno, "cannot replace", to);
  }

  absl::Status Unlink(const std::string& path) override { return Remove(path, 0); }
  absl::Status RemoveDirectory(const std::string& path) override {
    return Remove(path, AT_REMOVEDIR);
  }

  absl::StatusOr<std::vector<Storage::Entry>> List(const std::string& path) override {
    DT_ASSIGN_OR_RETURN(UniqueFd fd, OpenDirectory(path));
    const std::unique_ptr<DIR, CloseDir> directory(fdopendir(fd.get()));
    if (directory == nullptr) {
      return Error(errno, "cannot list", path);
    }
    const int directory_fd = fd.release();  // The stream owns it now.
    std::vector<Storage::Entry> entries;
    errno = 0;
    while (const dirent* found = readdir(directory.get())) {
      const std::string name = found->d_name;
      struct stat info {};
      if (name != "." && name != ".." &&
          fstatat(directory_fd, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
        entries.push_back({name, S_ISDIR(info.st_mode), static_cast<uint64_t>(info.st_size)});
      }
      errno = 0;
    }
    if (errno != 0) {
      return Error(errno, "cannot list", path);
    }
    std::sort(entries.begin(), entries.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    return entries;
  }

  std::optional<uint64_t> FreeBytes() override {
    struct statvfs facts = {};
    return fstatvfs(root_.get(), &facts) == 0
               ? std::optional(static_cast<uint64_t>(facts.f_bavail) * facts.f_frsize)
               : std::nullopt;
  }

  std::string SlowerWrites() override {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> reasons;
    if (refuses_direct_) {
      reasons.push_back("through the page cache, because the file system refuses O_DIRECT");
    }
    if (!uring_refusal_.ok()) {
      reasons.push_back(absl::StrCat("by threads, because ", uring_refusal_.message()));
    }
    return absl::StrJoin(reasons, ", and ");
  }

  std::string DisplayName(const std::string& path) const override {
    return path.empty() ? directory_ : absl::StrCat(directory_, "/", path);
  }

 private:
  struct Place {
    UniqueFd parent;
    std::string name;
  };

  static bool IsDirect(int handle) {
    const int flags = fcntl(handle, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0;
  }
  // Changes nothing where the file system has no O_DIRECT.
  static void SetDirect(int handle, bool direct) {
    if (const int flags = fcntl(handle, F_GETFL); flags >= 0) {
      fcntl(handle, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT);
    }
  }

  absl::Status Error(int error_number, absl::string_view what, const std::string& path) const {
    return ErrnoStatus(error_number, absl::StrCat(what, " ", DisplayName(path)));
  }

  absl::StatusOr<UniqueFd> OpenDirectory(const std::string& path) const {
    if (!path.empty()) {
      DT_RETURN_IF_ERROR(CheckRelativePath(path));
    }
    UniqueFd at(openat(root_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!at.valid()) {
      return Error(errno, "cannot open the folder", path);
    }
    for (const absl::string_view component : absl::StrSplit(path, '/', absl::SkipEmpty())) {
      const std::string part(component);
      UniqueFd next(
          openat(at.get(), part.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!next.valid()) {
        const int error = errno;
        struct stat info {};
        const bool is_link = fstatat(at.get(), part.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
                             S_ISLNK(info.st_mode);
        return is_link ? absl::InvalidArgumentError(absl::StrCat(
                             "cannot open the folder ", DisplayName(path), ": ", part,
                             " is a symbolic link, which is not followed; move its folder here"))
                       : Error(error, "cannot open the folder", path);
      }
      at = std::move(next);
    }
    return at;
  }

  absl::StatusOr<Place> Find(const std::string& path) const {
    DT_RETURN_IF_ERROR(CheckRelativePath(path));
    const size_t slash = path.rfind('/');
    Place place;
    place.name = slash == std::string::npos ? path : path.substr(slash + 1);
    DT_ASSIGN_OR_RETURN(place.parent,
                        OpenDirectory(slash == std::string::npos ? "" : path.substr(0, slash)));
    return place;
  }

  // From here on the new file is a DirectFile.
  absl::Status WriteDirectly(int handle, uint64_t bytes) {
    // Until Sync it is longer than it will be, for a crash may leave it with zeros.
    const uint64_t size = bytes + 1;
    if (ftruncate(handle, static_cast<off_t>(size)) != 0) {
      return ErrnoStatus(errno, absl::StrCat("cannot set the file's size to ", size, " bytes"));
    }
    auto queue = OpenUringQueue();
    auto direct = std::make_unique<DirectFile>(
        handle, size, queue.ok() ? *std::move(queue) : MakeThreadQueue(), blocks_);
    const std::lock_guard lock(mutex_);
    uring_refusal_.Update(queue.status());
    direct_[handle] = std::move(direct);
    return absl::OkStatus();
  }

  DirectFile* FindDirect(int handle) {
    const std::lock_guard lock(mutex_);
    const auto found = direct_.find(handle);
    return found != direct_.end() ? found->second.get() : nullptr;
  }

  absl::Status Remove(const std::string& path, int flags) {
    DT_ASSIGN_OR_RETURN(const Place place, Find(path));
    return unlinkat(place.parent.get(), place.name.c_str(), flags) == 0
               ? absl::OkStatus()
               : Error(errno, "cannot remove", path);
  }

  const std::string directory_;
  const UniqueFd root_;
  const bool reads_ahead_;
  const std::shared_ptr<WriteBlocks> blocks_ = std::make_shared<WriteBlocks>();
  std::mutex mutex_;
  absl::flat_hash_map<int, std::unique_ptr<DirectFile>> direct_;  // By handle.
  bool refuses_direct_ = false;
  absl::Status uring_refusal_;
};

}  // namespace

absl::Status CheckRelativePath(const std::string& path) {
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (part.empty() || part == "." || part == ".." || part.find('\0') != absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat(
          "path \"", path, "\" must be relative, without empty, \".\" or \"..\" parts"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<FileSystem>> OpenRealFileSystem(const std::string& directory) {
  DT_RETURN_IF_ERROR(MakeDirectories(directory));
  DT_ASSIGN_OR_RETURN(UniqueFd root, OpenFile(directory, O_RDONLY | O_DIRECTORY));
  return std::make_unique<RealFileSystem>(directory, std::move(root));
}

}  // namespace dtrain::checkpoint
