#include "launcher/records/attempt_logs.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/job_env.h"
#include "base/log.h"
#include "base/status.h"
#include "base/threads/bounded_queue.h"
#include "base/threads/worker.h"
#include "base/unique_fd.h"
#include "launcher/records/file_tail.h"

namespace dtrain::launcher {
namespace {

constexpr char kPrefix[] = "attempt-";
constexpr uint64_t kLogBytesMaxDefault = 256U << 20;
// A file that could not be limited is tried again after so many looks: its disk is full or broken.
constexpr int kLooksAfterError = 60;

// Lines of a writer that is faster than so many copies are lost.
constexpr int kCopiesMax = 3;

// Copies what `from` holds behind byte `at`, and what is written meanwhile up to a limit. Gives
// whether that is all.
absl::StatusOr<bool> CopyLog(int from, uint64_t at, uint64_t bytes_max, const std::string& to) {
  DT_ASSIGN_OR_RETURN(const UniqueFd copy, OpenFile(to, O_WRONLY | O_CREAT | O_TRUNC));
  std::vector<char> chunk(1U << 20);
  for (const uint64_t end = at + bytes_max; at < end;) {
    const size_t bytes = static_cast<size_t>(std::min<uint64_t>(chunk.size(), end - at));
    const ssize_t n = pread(from, chunk.data(), bytes, static_cast<off_t>(at));
    if (n == 0) {
      return true;
    }
    if (n < 0 && errno != EINTR) {
      return ErrnoStatus(errno, "reading it");
    }
    if (n > 0) {
      DT_RETURN_IF_ERROR(
          Annotate(WriteFully(copy.get(), chunk.data(), static_cast<size_t>(n)), to));
      at += static_cast<uint64_t>(n);
    }
  }
  return false;
}

}  // namespace

std::string AttemptFolder(const std::string& logs, int number) {
  return absl::StrCat(logs, "/", kPrefix, number);
}

std::optional<int> NewestAttempt(const std::string& logs) {
  std::optional<int> newest;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(logs, ignored)) {
    const std::string name = entry.path().filename();
    absl::string_view rest = name;
    int number = 0;
    if (absl::ConsumePrefix(&rest, kPrefix) && absl::SimpleAtoi(rest, &number) && number >= 0) {
      newest = std::max(newest.value_or(0), number);
    }
  }
  return newest;
}

int WhyNoRoom(const DiskFacts& disk) {
  constexpr uint64_t kRoomLeast = 64U << 10;
  if (disk.is_read_only) {
    return EROFS;
  }
  return disk.bytes > 0 && disk.bytes_free < kRoomLeast ? ENOSPC : 0;
}

absl::Status CheckLogRoom(const std::string& logs) {
  std::error_code ignored;
  std::filesystem::path folder = std::filesystem::absolute(logs, ignored).lexically_normal();
  while (!std::filesystem::exists(folder, ignored) && folder.has_relative_path()) {
    folder = folder.parent_path();
  }
  struct statvfs facts {};
  if (!std::filesystem::is_directory(folder, ignored) || statvfs(folder.c_str(), &facts) != 0) {
    return absl::OkStatus();  // Whoever makes it says what is wrong.
  }
  const uint64_t free_blocks = geteuid() == 0 ? facts.f_bfree : facts.f_bavail;
  int error = WhyNoRoom({(facts.f_flag & ST_RDONLY) != 0, facts.f_blocks * facts.f_frsize,
                         free_blocks * facts.f_frsize});
  if (error == 0 && access(folder.c_str(), W_OK | X_OK) != 0) {
    error = errno;
  }
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, folder.string());
}

absl::StatusOr<uint64_t> LogBytesMax(const std::string& text) {
  uint64_t bytes = 0;
  if (text.empty()) {
    return kLogBytesMaxDefault;
  }
  if (!absl::SimpleAtoi(text, &bytes)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "environment variable %s is \"%s\"; allowed: a number of bytes, or 0 for no limit",
        env::kLogBytesMax, absl::CHexEscape(text)));
  }
  return bytes;
}

absl::Status LimitLog(const std::string& path, uint64_t bytes_max) {
  if (FileEnd(path) <= bytes_max) {
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const UniqueFd output, OpenFile(path, O_RDWR));
  const std::string kept = KeptPath(path);
  unlink(kept.c_str());  // The copy may need its room.
  // What is not copied is lost, and the end of an output may say why its rank has failed.
  absl::StatusOr<bool> is_all = false;
  for (int copies = 0; copies < kCopiesMax && is_all.ok() && !*is_all; ++copies) {
    const uint64_t size = FileEnd(path);
    // Twice as much, because its writers go on.
    is_all = CopyLog(output.get(), size - std::min(size, bytes_max), 2 * bytes_max, kept);
  }
  if (!is_all.ok()) {
    unlink(kept.c_str());
    return Annotate(is_all.status(), path);
  }
  return ftruncate(output.get(), 0) == 0 ? absl::OkStatus()
                                         : ErrnoStatus(errno, absl::StrCat("cannot empty ", path));
}

struct LogLimits::Shared {
  std::vector<std::string> paths;
  uint64_t bytes_max = 0;
  absl::Duration look;
  BoundedQueue<bool> stop{1};
  BoundedQueue<bool> ended{1};

  void Run() {
    PrepareThread("dtrain-logs", /*low_priority=*/true);
    std::vector<int> pauses(paths.size(), 0);  // Looks that are left out.
    while (!stop.Pop(Deadline::After(look)).has_value()) {
      for (size_t i = 0; i < paths.size(); ++i) {
        if (pauses[i] > 0) {
          --pauses[i];
        } else if (const absl::Status limited = LimitLog(paths[i], bytes_max); !limited.ok()) {
          DT_LOG(Warning) << "an output above its limit cannot be begun anew: "
                          << limited.message();
          pauses[i] = kLooksAfterError;
        }
      }
    }
    ended.TryPush(true);
  }
};

LogLimits::LogLimits(std::vector<std::string> paths, uint64_t bytes_max, absl::Duration look)
    : shared_(std::make_shared<Shared>()) {
  if (bytes_max == 0) {
    return;
  }
  shared_->paths = std::move(paths);
  shared_->bytes_max = bytes_max;
  shared_->look = look;
  thread_ = std::thread([shared = shared_] { shared->Run(); });
}

LogLimits::~LogLimits() {
  if (!thread_.joinable()) {
    return;
  }
  shared_->stop.TryPush(true);
  if (shared_->ended.Pop(Deadline::After(absl::Seconds(1))).has_value()) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

}  // namespace dtrain::launcher
