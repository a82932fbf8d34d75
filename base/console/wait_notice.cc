#include "base/console/wait_notice.h"

#include <chrono>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/threads/worker.h"

namespace dtrain {

WaitNotice::WaitNotice(std::function<std::string()> line, WaitNoticeTimes times)
    : line_(std::move(line)), times_(times) {
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {  // No more threads: the wait itself needs none.
  }
}

WaitNotice::WaitNotice(const std::string& text) : WaitNotice([text] { return text; }) {}

WaitNotice::~WaitNotice() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void WaitNotice::Run() {
  PrepareThread("dtrain-notice", false);
  const int64_t begin = Clock::Real().MonotonicNanos();
  std::unique_lock lock(mutex_);
  for (absl::Duration pause = times_.first;; pause = times_.again) {
    if (changed_.wait_for(lock, absl::ToChronoNanoseconds(pause), [this] { return ended_; })) {
      return;
    }
    lock.unlock();
    const std::string text = line_();
    lock.lock();
    if (!text.empty() && !ended_) {
      const absl::Duration waited = absl::Nanoseconds(Clock::Real().MonotonicNanos() - begin);
      DT_LOG(Info) << text << "; waiting for "
                   << absl::FormatDuration(absl::Trunc(waited, absl::Seconds(1))) << " so far";
    }
  }
}

}  // namespace dtrain
