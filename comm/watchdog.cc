#include "comm/watchdog.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/threads/worker.h"
#include "base/unique_fd.h"

namespace dtrain::comm {
namespace {

struct Watched {
  std::function<void(int64_t now_nanos)> inspect;
  std::function<void(const std::string& reason)> abandon;
  int fd = -1;
};

// The watchdog's thread pauses between two inspections. The next thread may begin before one ends,
// so each has its own.
class Pause {
 public:
  Pause() { Add(bell_.get()); }

  // A descriptor ends one pause for each arrival, also if nobody reads it or its peer has gone.
  void Add(int fd) const {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    if (fd >= 0) {  // Without it the regular inspections are left.
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
    }
  }
  void Remove(int fd) const {
    if (fd >= 0) {
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    }
  }
  void End() const { (void)eventfd_write(bell_.get(), 1); }
  // Blocks for kWatchPeriod, or until something arrives.
  void Await() const {
    epoll_event event{};
    const int count = epoll_wait(epoll_.get(), &event, 1,
                                 static_cast<int>(absl::ToInt64Milliseconds(kWatchPeriod)));
    if (count < 0 && errno != EINTR) {  // There was no descriptor left for it.
      Clock::Real().Sleep(kWatchPeriod);
    }
  }

 private:
  UniqueFd epoll_{epoll_create1(EPOLL_CLOEXEC)};
  UniqueFd bell_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

class Watchdog {
 public:
  uint64_t Add(Watched watched) {
    const std::lock_guard lock(mutex_);
    const int fd = watched.fd;
    watched_.emplace(++last_id_, std::move(watched));
    if (!thread_.joinable()) {
      turn_ = std::make_shared<Turn>();
      thread_ = std::thread([this, turn = turn_] { Run(*turn); });
    }
    turn_->pause.Add(fd);
    return last_id_;
  }

  void Remove(uint64_t id) {
    std::thread thread;
    {
      const std::lock_guard lock(mutex_);
      const auto found = watched_.find(id);
      turn_->pause.Remove(found->second.fd);
      watched_.erase(found);
      if (watched_.empty()) {
        turn_->stop = true;
        thread.swap(thread_);
        turn_->pause.End();
      }
    }
    if (thread.joinable()) {
      thread.join();
    }
  }

  void Abandon(const std::string& reason) {
    const std::lock_guard lock(abandon_mutex_);
    abandon_ = reason;
  }

 private:
  // Belongs to one thread: the next one may begin before it ends.
  struct Turn {
    bool stop = false;  // Guarded by mutex_.
    Pause pause;
  };

  std::optional<std::string> TakeAbandon() {
    const std::lock_guard lock(abandon_mutex_);
    return std::exchange(abandon_, std::nullopt);
  }

  void Run(const Turn& turn) {
    PrepareThread("dtrain-watchdog", /*low_priority=*/false);
    std::unique_lock lock(mutex_);
    while (!turn.stop) {
      lock.unlock();
      turn.pause.Await();
      lock.lock();
      for (const auto& [id, watched] : watched_) {
        watched.inspect(Clock::Real().MonotonicNanos());
      }
      const std::optional<std::string> reason = TakeAbandon();
      for (const auto& [id, watched] : watched_) {
        if (reason.has_value() && watched.abandon != nullptr) {
          watched.abandon(*reason);
        }
      }
    }
  }

  std::mutex mutex_;
  std::map<uint64_t, Watched> watched_;
  uint64_t last_id_ = 0;
  std::shared_ptr<Turn> turn_;
  std::thread thread_;
  std::mutex abandon_mutex_;  // Not the other one, which is held while inspections run.
  std::optional<std::string> abandon_;
};

Watchdog& TheWatchdog() {
  static auto* const watchdog = new Watchdog;  // Groups may end when statics do.
  return *watchdog;
}

class WatchdogWatch final : public Watch {
 public:
  explicit WatchdogWatch(uint64_t id) : id_(id) {}
  ~WatchdogWatch() override { TheWatchdog().Remove(id_); }

 private:
  const uint64_t id_;
};

}  // namespace

std::unique_ptr<Watch> StartWatch(std::function<void(int64_t now_nanos)> inspect,
                                  std::function<void(const std::string& reason)> abandon, int fd) {
  return std::make_unique<WatchdogWatch>(
      TheWatchdog().Add({std::move(inspect), std::move(abandon), fd}));
}

void AbandonGroups(const std::string& reason) { TheWatchdog().Abandon(reason); }

}  // namespace dtrain::comm
