// The calls of one group in order, and who runs them: the group's comm thread, or a compute thread
// that waits anyway.
//
// Thread-safe. The comm thread is started by the first call that asks for it. A thread in Wait runs
// the queue itself when nobody else does, so that a call whose caller waits at once costs no thread
// switch.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "comm/call_timeout.h"
#include "comm/collectives/backend.h"
#include "comm/flight_recorder.h"
#include "comm/work.h"
#include "comm/work_state.h"

namespace dtrain::comm {

struct CallQueueOptions {
  std::string thread_name = "dtrain-comm";
  std::shared_ptr<FlightRecorder> recorder;
  TimeoutLimits timeouts;
};

class CallQueue : public std::enable_shared_from_this<CallQueue> {
 public:
  // Runs one collective, or several sends and receives, to the end or to the timeout.
  using Runner = std::function<absl::Status(absl::Span<const Call> calls, absl::Duration timeout)>;

  CallQueue(CallQueueOptions options, Runner runner)
      : options_(std::move(options)), runner_(std::move(runner)), timeouts_(options_.timeouts) {}
  ~CallQueue();

  // Queues `call`. `caller_waits`: its Wait comes next, so no thread is woken for it.
  Work Push(Call call, bool caller_waits);
  // Ends queued calls with `reason` (those that run are ended by the runner's interruption), and
  // every later one with Aborted. The first reason stays.
  void Break(const absl::Status& reason);
  // The reason, or OK.
  absl::Status broken() const;
  // Quick form of broken(): whether it is not OK.
  bool is_broken() const { return is_broken_.load(std::memory_order_acquire); }
  // Whether a compute thread waits for the queue now.
  bool AnyoneWaits() const { return waiting_.load(std::memory_order_relaxed) > 0; }
  // Breaks with `reason`, then joins the comm thread. REQUIRES: the runner can be interrupted.
  void Stop(const absl::Status& reason);

  FlightRecorder& recorder() { return *options_.recorder; }

 private:
  struct Item;
  class State;

  void RunThread();
  // Runs what is at the front. REQUIRES: the lock is held, nobody runs, the queue is not empty.
  void RunFront(std::unique_lock<std::mutex>& lock);
  absl::Status WaitFor(Item& item, Deadline deadline);
  void WakeThread();
  void Nudge();  // Starts what waits for somebody to ask.
  // How long `call` may take. A deadline of its own says so, within the configured limit.
  absl::Duration TimeoutOf(const Call& call) const;

  const CallQueueOptions options_;
  const Runner runner_;
  CallTimeouts timeouts_;  // Of whoever runs.
  mutable std::mutex mutex_;
  std::condition_variable thread_wakes_;  // For the comm thread.
  std::condition_variable waiters_wake_;  // For threads in Wait.
  std::deque<std::shared_ptr<Item>> queue_;
  bool running_ = false;  // Someone is in RunFront.
  bool thread_wanted_ = false;
  bool stop_ = false;
  absl::Status broken_;
  std::atomic<bool> is_broken_{false};
  std::atomic<int> waiting_{0};
  std::thread thread_;
};

}  // namespace dtrain::comm
