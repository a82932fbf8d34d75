#include "comm/watchdog.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/threads/worker.h"

namespace dtrain::comm {
namespace {

class Watchdog {
 public:
  uint64_t Add(std::function<void(int64_t)> inspect) {
    const std::lock_guard lock(mutex_);
    inspections_.emplace(++last_id_, std::move(inspect));
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
      inspections_.erase(id);
      if (inspections_.empty()) {
        *stop_ = true;
        thread.swap(thread_);
        wakes_.notify_all();
      }
    }
    if (thread.joinable()) {
      thread.join();
    }
  }

 private:
  // `stop` belongs to this thread alone: the next thread may begin before it ends.
  void Run(const bool& stop) {
    PrepareThread("dtrain-watchdog", /*low_priority=*/false);
    const std::chrono::nanoseconds period(absl::ToInt64Nanoseconds(kWatchPeriod));
    std::unique_lock lock(mutex_);
    while (!stop) {
      wakes_.wait_for(lock, period);
      for (const auto& [id, inspect] : inspections_) {
        inspect(Clock::Real().MonotonicNanos());
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable wakes_;
  std::map<uint64_t, std::function<void(int64_t)>> inspections_;
  uint64_t last_id_ = 0;
  std::shared_ptr<bool> stop_;
  std::thread thread_;
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

std::unique_ptr<Watch> StartWatch(std::function<void(int64_t now_nanos)> inspect) {
  return std::make_unique<WatchdogWatch>(TheWatchdog().Add(std::move(inspect)));
}

}  // namespace dtrain::comm
