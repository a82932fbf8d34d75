#include "comm/watchdog.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/threads/worker.h"

namespace dtrain::comm {
namespace {

struct Watched {
  std::function<void(int64_t now_nanos)> inspect;
  std::function<void(const std::string& reason)> abandon;
};

class Watchdog {
 public:
  uint64_t Add(Watched watched) {
    const std::lock_guard lock(mutex_);
    watched_.emplace(++last_id_, std::move(watched));
    if (!thread_.joinable()) {
      stop_ = std::make_shared<bool>(false);
      thread_ = std::thread([this, stop = stop_] { Run(*stop); });
    }
    return last_id_;
  }

  void Remove(uint64_t id) {
    std::thread thread;
    {
      const std::lock_guard lock(mutex_);
      watched_.erase(id);
      if (watched_.empty()) {
        *stop_ = true;
        thread.swap(thread_);
        wakes_.notify_all();
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
  std::optional<std::string> TakeAbandon() {
    const std::lock_guard lock(abandon_mutex_);
    return std::exchange(abandon_, std::nullopt);
  }

  // `stop` belongs to this thread alone: the next thread may begin before it ends.
  void Run(const bool& stop) {
    PrepareThread("dtrain-watchdog", /*low_priority=*/false);
    const std::chrono::nanoseconds period(absl::ToInt64Nanoseconds(kWatchPeriod));
    std::unique_lock lock(mutex_);
    while (!stop) {
      wakes_.wait_for(lock, period);
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
  std::condition_variable wakes_;
  std::map<uint64_t, Watched> watched_;
  uint64_t last_id_ = 0;
  std::shared_ptr<bool> stop_;
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
                                  std::function<void(const std::string& reason)> abandon) {
  return std::make_unique<WatchdogWatch>(
      TheWatchdog().Add({std::move(inspect), std::move(abandon)}));
}

void AbandonGroups(const std::string& reason) { TheWatchdog().Abandon(reason); }

}  // namespace dtrain::comm
