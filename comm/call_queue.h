// The calls of one group in order. The group's comm thread runs them, or a compute thread that
// waits anyway.
//
// Thread-safe. The comm thread is started by the first call that asks for it. A thread in Wait runs
// the queue itself when nobody else does, so that a call whose caller waits at once costs no thread
// switch.
// The process's watchdog inspects the queue. It ends the group, with one line of the log and a
// flight record, when a call outlives its limit, nobody waits for a collective, an error was
// reported to nobody, or peers gave up while this rank was in no call.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "comm/call_timeout.h"
#include "comm/collectives/backend.h"
#include "comm/flight_recorder.h"
#include "comm/queue_alarm.h"
#include "comm/watchdog.h"
#include "comm/work.h"
#include "comm/work_state.h"

namespace dtrain::comm {

struct CallQueueOptions {
  std::string thread_name = "dtrain-comm";
  std::shared_ptr<FlightRecorder> recorder;
  TimeoutLimits timeouts;
  // Gives the reason of a peer that gave up, or OK, without waiting; called while no call runs.
  // Null: the watchdog does not inspect this queue.
  std::function<absl::Status()> poll_peers = nullptr;
  // Tells the peers that this rank gives up. Any thread; never blocks.
  std::function<void(const absl::Status& reason)> give_up = nullptr;
};

class CallQueue : public std::enable_shared_from_this<CallQueue> {
 public:
  // Runs one collective, or several sends and receives, to the end or to the timeout.
  using Runner = std::function<absl::Status(absl::Span<const Call> calls, absl::Duration timeout)>;

  CallQueue(CallQueueOptions options, Runner runner);
  ~CallQueue();

  // Queues `call`. `caller_waits`: its Wait comes next, so no thread is woken for it.
  Work Push(Call call, bool caller_waits);
  // Ends queued calls with `reason` (those that run are ended by the runner's interruption), and
  // every later one with Aborted. The first reason stays. `reported`: the caller knows the reason
  // already, so the watchdog need not log it.
  void Break(const absl::Status& reason, bool reported = false);
  // The reason, or OK.
  absl::Status broken() const;
  // Quick form of broken(): whether it is not OK.
  bool is_broken() const { return is_broken_.load(std::memory_order_acquire); }
  // The header of the collective that is run next, when it is queued already.
  std::optional<CallHeader> NextCollective() const;
  // Whether a compute thread waits for the queue now.
  bool AnyoneWaits() const { return waiting_.load(std::memory_order_relaxed) > 0; }
  // Breaks with `reason`, then joins the comm thread. REQUIRES: the runner can be interrupted.
  void Stop(const absl::Status& reason);

  FlightRecorder& recorder() { return *options_.recorder; }

 private:
  struct Item;
  class State;

  void RunThread();
  // Runs the call at the front, or all messages there. REQUIRES: the lock is held, nobody runs, the
  // queue is not empty.
  void RunFront(std::unique_lock<std::mutex>& lock);
  absl::Status WaitFor(Item& item, Deadline deadline);
  // The result of `item` for a caller that asked for it: an error counts as reported. REQUIRES: the
  // lock is held.
  const absl::Status& TakeResult(const Item& item);
  void WakeThread();
  void StartQueued();  // Wakes the thread for calls that start only when someone asks for them.
  // Called by the watchdog's thread every kWatchPeriod.
  void Inspect(int64_t now_nanos);
  // Called by it when somebody knows that a peer is lost (AbandonGroups).
  void Abandon(const std::string& reason);
  QueueSnapshot Snapshot() const;  // REQUIRES: the lock is held.
  // Asks whether a peer gave up, in the place of a call. REQUIRES: the lock is held, nobody runs.
  absl::Status PollPeers(std::unique_lock<std::mutex>& lock);
  std::string LastCall(int64_t now_nanos) const;  // REQUIRES: the lock is held.
  // Breaks the group here and on the peers, and logs `reason`.
  void Alarm(std::unique_lock<std::mutex>& lock, const absl::Status& reason);
  // How long `call` may take. The call's own deadline decides if it has one, within the configured
  // limit.
  absl::Duration TimeoutOf(const Call& call) const;

  const CallQueueOptions options_;
  const Runner runner_;
  CallTimeouts timeouts_;  // Used only by the thread in RunFront.
  mutable std::mutex mutex_;
  std::condition_variable thread_wakes_;  // For the comm thread.
  std::condition_variable waiters_wake_;  // For threads in Wait.
  std::deque<std::shared_ptr<Item>> queue_;
  bool running_ = false;  // Someone is in RunFront.
  // The first of the running calls, or null, and the run's timeout and start.
  const Item* run_ = nullptr;
  absl::Duration run_timeout_ = absl::ZeroDuration();
  int64_t run_nanos_ = 0;
  std::shared_ptr<Item> last_;   // The call that ended last,
  int64_t last_nanos_ = 0;       // and when.
  int64_t inspected_nanos_ = 0;  // The watchdog's last inspection,
  int64_t awake_nanos_ = 0;      // and since when these have come without a pause.
  bool thread_wanted_ = false;
  bool stop_ = false;
  absl::Status broken_;
  int64_t broken_nanos_ = 0;
  std::atomic<bool> reported_{false};  // A caller was given the reason.
  std::atomic<bool> is_broken_{false};
  std::atomic<int> waiting_{0};
  std::thread thread_;
  std::unique_ptr<Watch> watch_;
};

}  // namespace dtrain::comm
