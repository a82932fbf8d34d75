#include "comm/transport/rdma/unmap_watch.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/threads/worker.h"

namespace dtrain::comm {
namespace {

// UFFD_USER_MODE_ONLY of Linux 5.11, which older headers lack. It limits the watch to accesses of
// user code and so needs no privilege.
constexpr int kUserModeOnly = 1;
constexpr uint64_t kFeatures = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMOVE |
                               UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_PAGEFAULT_FLAG_WP;

}  // namespace

absl::StatusOr<std::unique_ptr<UnmapWatch>> UserfaultWatch::Create() {
  UniqueFd events(
      static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | kUserModeOnly)));
  if (!events.valid()) {
    return absl::UnimplementedError(ErrnoStatus(errno, "userfaultfd").message());
  }
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = kFeatures;
  if (ioctl(events.get(), UFFDIO_API, &api) != 0) {
    return absl::UnimplementedError(ErrnoStatus(errno, "UFFDIO_API").message());
  }
  UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) {
    return ErrnoStatus(errno, "eventfd");
  }
  return std::unique_ptr<UnmapWatch>(new UserfaultWatch(std::move(events), std::move(stop)));
}

UserfaultWatch::UserfaultWatch(UniqueFd events, UniqueFd stop)
    : events_(std::move(events)), stop_(std::move(stop)), thread_([this] { Run(); }) {}

UserfaultWatch::~UserfaultWatch() {
  const uint64_t one = 1;
  const ssize_t written = write(stop_.get(), &one, sizeof(one));
  static_cast<void>(written);
  thread_.join();
}

bool UserfaultWatch::Watch(const MemoryRange& range) {
  uffdio_register request{};
  request.range.start = range.begin;
  request.range.len = range.end - range.begin;
  // No page is write-protected, so no access ever waits: only the events are used.
  request.mode = UFFDIO_REGISTER_MODE_WP;
  return ioctl(events_.get(), UFFDIO_REGISTER, &request) == 0;
}

void UserfaultWatch::Note(const MemoryRange& range) {
  const uint64_t noted = noted_.load();
  if (noted - taken_.load() >= kRangesMax) {
    too_many_.store(true);
    return;
  }
  ranges_[noted % kRangesMax] = range;
  noted_.store(noted + 1);
}

void UserfaultWatch::Run() {
  PrepareThread("dtrain-unmap", /*low_priority=*/false);
  while (true) {
    pollfd items[] = {{events_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (poll(items, 2, -1) < 0 && errno != EINTR) {
      return;
    }
    if (items[1].revents != 0) {
      return;
    }
    // Reading lets the caller of munmap go on. A thread that calls Take meanwhile waits until the
    // event is noted.
    noting_.store(true);
    uffd_msg message{};
    while (read(events_.get(), &message, sizeof(message)) == sizeof(message)) {
      if (message.event == UFFD_EVENT_UNMAP || message.event == UFFD_EVENT_REMOVE) {
        Note({message.arg.remove.start, message.arg.remove.end});
      } else if (message.event == UFFD_EVENT_REMAP) {
        Note({message.arg.remap.from, message.arg.remap.from + message.arg.remap.len});
      }
    }
    noting_.store(false);
  }
}

void UserfaultWatch::Take(absl::FunctionRef<void(const MemoryRange& range)> gone) {
  while (noting_.load()) {
    std::this_thread::yield();
  }
  const uint64_t noted = noted_.load();
  if (too_many_.exchange(false)) {
    taken_.store(noted);
    gone({0, std::numeric_limits<uintptr_t>::max()});
    return;
  }
  // Copied first, because `gone` may free memory and so cause another event that needs room.
  for (uint64_t next = taken_.load(); next < noted; ++next) {
    const MemoryRange range = ranges_[next % kRangesMax];
    taken_.store(next + 1);
    gone(range);
  }
}

}  // namespace dtrain::comm
