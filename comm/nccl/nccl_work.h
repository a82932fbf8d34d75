// The state behind a Work of the NCCL group, which the watchdog's thread finishes once.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "comm/work_state.h"

namespace dtrain::comm {

// How many threads wait for Works of one group. Its watchdog polls the device more often for them.
using NcclWaiters = std::atomic<int>;

class NcclWork final : public WorkState {
 public:
  // `waiters`: null if no watchdog reads it.
  explicit NcclWork(std::shared_ptr<NcclWaiters> waiters = nullptr)
      : waiters_(std::move(waiters)) {}

  absl::Status Wait(Deadline deadline) override;
  bool Done() const override { return done_; }
  int64_t DurationNanos() const override { return duration_nanos_; }

  // Wakes the waiters. REQUIRES: called once.
  void Finish(absl::Status status, int64_t duration_nanos);

 private:
  const std::shared_ptr<NcclWaiters> waiters_;
  std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status status_;
  std::atomic<bool> done_{false};
  std::atomic<int64_t> duration_nanos_{0};
};

}  // namespace dtrain::comm
