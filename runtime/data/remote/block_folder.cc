#include "runtime/data/remote/block_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"

namespace dtrain::remote {
namespace {

namespace fs = std::filesystem;

constexpr char kObjectPrefix[] = "object-";
constexpr char kNewSuffix[] = ".new";
constexpr int kLocks = 1024;
constexpr size_t kVerifiedMax = size_t{1} << 20;
constexpr auto kStaleAfter = std::chrono::minutes(10);  // Then nobody writes a new block any more.
constexpr int64_t kTouchAfterSeconds = 60;              // The order of use need not be finer.

// The bytes behind a block.
struct Footer {
  uint32_t magic = 0x4b4c4244;  // "DBLK".
  uint32_t crc32c = 0;
};

bool ReadFully(int fd, int64_t offset, void* into, size_t bytes) {
  auto* out = static_cast<char*>(into);
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = pread(fd, out + done, bytes - done, offset + static_cast<int64_t>(done));
    if (n == 0 || (n < 0 && errno != EINTR)) {
      return false;
    }
    done += n > 0 ? static_cast<size_t>(n) : 0;
  }
  return true;
}

bool IsNumber(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c));
  });
}

struct KeptFile {
  fs::file_time_type used;
  int64_t bytes = 0;
  fs::path path;
};

// Lists a folder; gives nothing where it cannot be read.
std::vector<fs::directory_entry> EntriesOf(const fs::path& folder) {
  std::vector<fs::directory_entry> entries;
  std::error_code error;
  for (fs::directory_iterator at(folder, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    entries.push_back(*at);
  }
  return entries;
}

// The blocks of a folder; removes what killed processes have left. Files of other names do not
// count.
std::vector<KeptFile> LookInto(const std::string& folder) {
  std::vector<KeptFile> found;
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (const fs::directory_entry& object : EntriesOf(folder)) {
    if (!absl::StartsWith(object.path().filename().string(), kObjectPrefix)) {
      continue;
    }
    const std::vector<fs::directory_entry> files = EntriesOf(object.path());
    for (const fs::directory_entry& file : files) {
      const std::string name = file.path().filename();
      const auto used = file.last_write_time(error);
      const auto bytes = error ? 0 : static_cast<int64_t>(file.file_size(error));
      if (!error && IsNumber(name)) {
        found.push_back({used, bytes, file.path()});
      } else if (!error && absl::EndsWith(name, kNewSuffix) && now - used > kStaleAfter) {
        fs::remove(file.path(), error);
      }
    }
    if (files.empty()) {  // Or new again, by a process that is about to write there.
      ::rmdir(object.path().c_str());
    }
  }
  return found;
}

int64_t SumOf(const std::vector<KeptFile>& files) {
  int64_t sum = 0;
  for (const KeptFile& file : files) {
    sum += file.bytes;
  }
  return sum;
}

absl::Status NotWritable(const std::string& folder, const absl::Status& why) {
  return absl::FailedPreconditionError(
      absl::StrCat("data.cache_dir ", folder, ": it cannot be written to: ", why.message(),
                   "; set data.cache_dir to a folder on a local disk that this user may write to"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlockFolder>> BlockFolder::Open(const std::string& folder,
                                                               int64_t bytes_max) {
  for (const std::string& path : {folder, absl::StrCat(folder, "/locks")}) {
    if (const absl::Status made = MakeDirectories(path, 0700); !made.ok()) {
      return NotWritable(folder, made);
    }
  }
  // Each process has a name of its own, and the system removes none that another one uses.
  const std::string probe = absl::StrCat(folder, "/locks/probe-", getpid());
  absl::StatusOr<UniqueFd> fd = OpenFile(probe, O_CREAT | O_WRONLY, 0600);
  if (!fd.ok()) {
    return NotWritable(folder, fd.status());
  }
  ::unlink(probe.c_str());
  if (bytes_max == 0) {
    struct statvfs disk {};
    if (statvfs(folder.c_str(), &disk) != 0) {
      return NotWritable(folder, ErrnoStatus(errno, "statvfs"));
    }
    const auto free = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
    bytes_max = (free + SumOf(LookInto(folder))) / 2;
  }
  return std::unique_ptr<BlockFolder>(new BlockFolder(folder, bytes_max));
}

std::string BlockFolder::PathOf(const BlockId& id) const {
  return absl::StrFormat("%s/%s%016x/%d", folder_, kObjectPrefix, id.object, id.number);
}

bool BlockFolder::Has(const BlockId& id) const {
  struct stat info {};
  return stat(PathOf(id).c_str(), &info) == 0;
}

bool BlockFolder::Verify(const BlockId& id, int fd) {
  {
    const std::lock_guard lock(mutex_);
    if (verified_.contains(id)) {
      return true;
    }
  }
  const auto bytes = static_cast<size_t>(id.bytes);
  const auto block = std::make_unique_for_overwrite<char[]>(bytes);
  Footer footer;
  const Footer wanted;
  const bool is_whole = ReadFully(fd, 0, block.get(), bytes) &&
                        ReadFully(fd, id.bytes, &footer, sizeof(footer)) &&
                        footer.magic == wanted.magic && footer.crc32c == Crc32c(block.get(), bytes);
  if (!is_whole) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  // Some of more blocks than the folder holds are not there any more.
  if (verified_bytes_ > bytes_max_ - id.bytes || verified_.size() >= kVerifiedMax) {
    verified_.clear();
    verified_bytes_ = 0;
  }
  verified_bytes_ += verified_.insert(id).second ? id.bytes : 0;
  return true;
}

absl::Status BlockFolder::Read(const BlockId& id, int64_t offset, absl::Span<std::byte> into) {
  const std::string path = PathOf(id);
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat info {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0) {
    return absl::NotFoundError(path);
  }
  if (info.st_size != id.bytes + static_cast<int64_t>(sizeof(Footer)) || !Verify(id, fd.get()) ||
      !ReadFully(fd.get(), offset, into.data(), into.size())) {
    DT_LOG(Warning) << path << ": the kept block is damaged or cannot be read; it is fetched anew";
    ::unlink(path.c_str());
    return absl::NotFoundError(path);
  }
  if (absl::ToUnixSeconds(absl::Now()) - info.st_mtim.tv_sec > kTouchAfterSeconds) {
    futimens(fd.get(), nullptr);
  }
  return absl::OkStatus();
}

absl::Status BlockFolder::WriteNew(const BlockId& id, const std::string& path,
                                   absl::Span<const std::byte> block) const {
  // The folder may be removed as an empty one until the file is in it.
  absl::StatusOr<UniqueFd> fd = absl::NotFoundError(path);
  for (int i = 0; i < 3 && absl::IsNotFound(fd.status()); ++i) {
    DT_RETURN_IF_ERROR(MakeDirectories(fs::path(path).parent_path(), 0700));
    fd = OpenFile(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
  }
  DT_RETURN_IF_ERROR(fd.status());
  Footer footer;
  footer.crc32c = Crc32c(block.data(), block.size());
  DT_RETURN_IF_ERROR(WriteFully(fd->get(), block.data(), block.size()));
  DT_RETURN_IF_ERROR(WriteFully(fd->get(), &footer, sizeof(footer)));
  DT_RETURN_IF_ERROR(fd->Close());
  const std::string name = PathOf(id);
  return rename(path.c_str(), name.c_str()) == 0 ? absl::OkStatus() : ErrnoStatus(errno, name);
}

absl::Status BlockFolder::Keep(const BlockId& id, absl::Span<const std::byte> block) {
  static std::atomic<uint64_t> number{0};
  const std::string path =
      absl::StrCat(PathOf(id), "-", getpid(), "-", number.fetch_add(1), kNewSuffix);
  if (const absl::Status status = WriteNew(id, path, block); !status.ok()) {
    ::unlink(path.c_str());
    return status;
  }
  CountNew(id.bytes);
  return absl::OkStatus();
}

void BlockFolder::CountNew(int64_t bytes) {
  // Up to 16 processes that write at once exceed the limit by no more than the slack below it.
  {
    const std::lock_guard lock(mutex_);
    new_bytes_ += bytes;
    if (new_bytes_ < bytes_max_ / 128) {
      return;
    }
    new_bytes_ = 0;
  }
  Trim();
}

void BlockFolder::Trim() const {
  // One process at a time; the next one counts what was written meanwhile.
  const UniqueFd lock = LockFile("trim", Deadline::After(absl::Seconds(5)));
  if (!lock.valid()) {
    return;
  }
  std::vector<KeptFile> files = LookInto(folder_);
  int64_t sum = SumOf(files);
  const int64_t bytes_kept = bytes_max_ - bytes_max_ / 8;
  if (sum <= bytes_kept) {
    return;
  }
  std::sort(files.begin(), files.end(),
            [](const KeptFile& a, const KeptFile& b) { return a.used < b.used; });
  for (const KeptFile& file : files) {
    if (sum <= bytes_kept) {
      return;
    }
    ::unlink(file.path.c_str());
    sum -= file.bytes;
  }
}

UniqueFd BlockFolder::LockFile(const std::string& name, Deadline deadline) const {
  const std::string path = absl::StrCat(folder_, "/locks/", name);
  UniqueFd fd(open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600));
  while (fd.valid() && flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK || deadline.Expired() || stops_waiting_) {
      return UniqueFd();
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  return fd;
}

UniqueFd BlockFolder::Lock(const BlockId& id, Deadline deadline) const {
  return LockFile(absl::StrCat((id.object + static_cast<uint64_t>(id.number)) % kLocks), deadline);
}

}  // namespace dtrain::remote
