#include "comm/call_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/threads/worker.h"

namespace dtrain::comm {
namespace {

bool IsMessage(const Call& call) {
  return call.header.kind == CallKind::kSend || call.header.kind == CallKind::kReceive;
}

absl::Status AfterBreak(const absl::Status& reason) {
  return absl::AbortedError(
      absl::StrCat("the group was broken before this call: ", reason.message()));
}

}  // namespace

struct CallQueue::Item {
  Call call;  // Only its header is left once it runs.
  uint64_t ticket = 0;
  int64_t queued_nanos = 0;
  // Guarded by the queue's mutex, but for `done`, which Done() may read at any time.
  absl::Status result;
  int64_t duration_nanos = 0;
  std::atomic<bool> done{false};
};

// Keeps the queue alive, so that a Work may outlive its group.
class CallQueue::State final : public WorkState {
 public:
  State(std::shared_ptr<CallQueue> queue, std::shared_ptr<Item> item)
      : queue_(std::move(queue)), item_(std::move(item)) {}
  absl::Status Wait(Deadline deadline) override { return queue_->WaitFor(*item_, deadline); }
  bool Done() const override {
    if (item_->done.load(std::memory_order_acquire)) {
      return true;
    }
    queue_->StartQueued();
    return false;
  }
  int64_t DurationNanos() const override {
    const std::lock_guard lock(queue_->mutex_);
    return item_->duration_nanos;
  }

 private:
  const std::shared_ptr<CallQueue> queue_;
  const std::shared_ptr<Item> item_;
};

CallQueue::CallQueue(CallQueueOptions options, Runner runner)
    : options_(std::move(options)), runner_(std::move(runner)), timeouts_(options_.timeouts) {
  if (options_.poll_peers != nullptr) {
    watch_ = StartWatch([this](int64_t now_nanos) { Inspect(now_nanos); },
                        [this](const std::string& reason) { Abandon(reason); });
  }
}

CallQueue::~CallQueue() { Stop(absl::AbortedError("the group was destroyed")); }

Work CallQueue::Push(Call call, bool caller_waits) {
  auto item = std::make_shared<Item>();
  item->queued_nanos = Clock::Real().MonotonicNanos();
  item->ticket = recorder().Queued({.header = call.header,
                                    .input_bytes = call.input.bytes,
                                    .output_bytes = call.output.bytes,
                                    .peer = call.peer});
  item->call = std::move(call);
  {
    const std::lock_guard lock(mutex_);
    if (!broken_.ok()) {
      item->result = AfterBreak(broken_);
      reported_.store(true, std::memory_order_relaxed);
      recorder().Ended(item->ticket, item->result);
      item->done.store(true, std::memory_order_release);
    } else {
      queue_.push_back(item);
      // A message starts when it is waited for or asked about, or when a collective follows: so
      // sends and receives of one exchange run together, whichever a rank queues first.
      if (!caller_waits && !IsMessage(item->call)) {
        WakeThread();
      }
    }
  }
  return Work(std::make_shared<State>(shared_from_this(), std::move(item)));
}

std::optional<CallHeader> CallQueue::NextCollective() const {
  const std::lock_guard lock(mutex_);
  return queue_.empty() || IsMessage(queue_.front()->call)
             ? std::nullopt
             : std::optional(queue_.front()->call.header);
}

void CallQueue::StartQueued() {
  const std::lock_guard lock(mutex_);
  if (!queue_.empty() && !thread_wanted_) {
    WakeThread();
  }
}

void CallQueue::WakeThread() {
  thread_wanted_ = true;
  if (!thread_.joinable() && !stop_) {
    thread_ = std::thread([this] { RunThread(); });
  }
  if (!running_) {
    thread_wakes_.notify_one();
  }
}

void CallQueue::RunThread() {
  PrepareThread(options_.thread_name, /*low_priority=*/false);
  TakeShortTurns();  // A peer waits for this rank's data.
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (!running_ && thread_wanted_ && !queue_.empty()) {
      RunFront(lock);
    } else {
      thread_wakes_.wait(lock);
    }
  }
}

void CallQueue::RunFront(std::unique_lock<std::mutex>& lock) {
  // Sends and receives that follow each other run together, so that two ranks that both send first
  // do not wait for each other.
  std::vector<std::shared_ptr<Item>> batch;
  do {
    batch.push_back(std::move(queue_.front()));
    queue_.pop_front();
  } while (!queue_.empty() && IsMessage(batch.back()->call) && IsMessage(queue_.front()->call));
  running_ = true;
  const absl::Duration timeout = TimeoutOf(batch.front()->call);
  const int64_t start = Clock::Real().MonotonicNanos();
  run_ = batch.front().get();
  run_timeout_ = timeout;
  run_nanos_ = start;
  lock.unlock();

  std::vector<Call> calls;
  calls.reserve(batch.size());
  for (const auto& item : batch) {
    recorder().Started(item->ticket, timeout);
    calls.push_back(std::move(item->call));
  }
  const absl::Status result = runner_(calls, timeout);
  const int64_t end = Clock::Real().MonotonicNanos();
  const int64_t nanos = end - start;
  if (result.ok()) {
    timeouts_.Observe(calls.front().header, absl::Nanoseconds(nanos));
  }
  calls.clear();  // Drops registrations before the waiters go on.

  lock.lock();
  for (const auto& item : batch) {
    recorder().Ended(item->ticket, result);
    item->result = result;
    item->duration_nanos = nanos;
    item->done.store(true, std::memory_order_release);
  }
  last_ = std::move(batch.back());
  last_nanos_ = end;
  run_ = nullptr;
  running_ = false;
  if (queue_.empty()) {
    thread_wanted_ = false;
  } else if (thread_wanted_) {
    thread_wakes_.notify_one();
  }
  waiters_wake_.notify_all();
}

absl::Duration CallQueue::TimeoutOf(const Call& call) const {
  return call.deadline.infinite() ? timeouts_.Of(call.header)
                                  : std::min(call.deadline.Remaining(), options_.timeouts.most);
}

absl::Status CallQueue::WaitFor(Item& item, Deadline deadline) {
  if (item.done.load(std::memory_order_acquire)) {
    const std::lock_guard lock(mutex_);
    return TakeResult(item);
  }
  // A caller with a deadline has other work, and other threads may be computing: nobody spins for
  // it, and it does not run the call itself.
  const int counts = deadline.infinite() ? 1 : 0;
  waiting_.fetch_add(counts, std::memory_order_relaxed);
  std::unique_lock lock(mutex_);
  if (!deadline.infinite() && !item.done.load(std::memory_order_relaxed)) {
    WakeThread();  // This thread may have to leave in the middle of a call.
  }
  while (!item.done.load(std::memory_order_relaxed) && !deadline.Expired()) {
    if (deadline.infinite() && !running_ && !queue_.empty()) {
      RunFront(lock);
    } else if (deadline.infinite()) {
      waiters_wake_.wait(lock);
    } else {
      waiters_wake_.wait_for(
          lock, std::chrono::nanoseconds(absl::ToInt64Nanoseconds(deadline.Remaining())));
    }
  }
  waiting_.fetch_sub(counts, std::memory_order_relaxed);
  if (!item.done.load(std::memory_order_relaxed)) {
    return absl::DeadlineExceededError(
        "the collective is still under way: it goes on and may be waited for again");
  }
  return TakeResult(item);
}

const absl::Status& CallQueue::TakeResult(const Item& item) {
  if (!item.result.ok()) {
    reported_.store(true, std::memory_order_relaxed);
  }
  return item.result;
}

void CallQueue::Break(const absl::Status& reason, bool reported) {
  const std::lock_guard lock(mutex_);
  if (!broken_.ok()) {
    return;
  }
  broken_ = reason;
  broken_nanos_ = Clock::Real().MonotonicNanos();
  reported_.store(reported, std::memory_order_relaxed);
  is_broken_.store(true, std::memory_order_release);
  for (const auto& item : queue_) {
    item->result = reason;
    recorder().Ended(item->ticket, reason);
    item->done.store(true, std::memory_order_release);
  }
  queue_.clear();
  waiters_wake_.notify_all();
}

absl::Status CallQueue::broken() const {
  const std::lock_guard lock(mutex_);
  return broken_;
}

void CallQueue::Stop(const absl::Status& reason) {
  watch_.reset();  // Before the lock: the watchdog's thread takes it.
  Break(reason, /*reported=*/true);
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    thread_wakes_.notify_all();
    thread.swap(thread_);
  }
  if (thread.joinable()) {
    thread.join();
  }
}

QueueSnapshot CallQueue::Snapshot() const {
  const bool queued = !queue_.empty() && !IsMessage(queue_.front()->call);
  return {.awake_nanos = awake_nanos_,
          .broken = !broken_.ok(),
          .reported = reported_.load(std::memory_order_relaxed),
          .broken_nanos = broken_nanos_,
          .running = run_ != nullptr,
          .started_nanos = run_nanos_,
          .timeout = run_timeout_,
          .queued = queued,
          // It could not begin before the one in front of it had ended.
          .queued_nanos = queued ? std::max(queue_.front()->queued_nanos, last_nanos_) : 0};
}

std::string CallQueue::LastCall(int64_t now_nanos) const {
  std::string text =
      last_ == nullptr
          ? "it has made none"
          : absl::StrCat(
                "the last, ", Describe(last_->call.header), " (collective ",
                last_->call.header.sequence, "), ended ",
                absl::FormatDuration(absl::Milliseconds((now_nanos - last_nanos_) / 1000000)),
                " ago");
  if (!queue_.empty()) {
    absl::StrAppend(&text, "; ", Describe(queue_.front()->call.header), " is queued and not begun");
  }
  return text;
}

absl::Status CallQueue::PollPeers(std::unique_lock<std::mutex>& lock) {
  running_ = true;
  lock.unlock();
  absl::Status said = options_.poll_peers();
  lock.lock();
  running_ = false;
  thread_wakes_.notify_one();
  waiters_wake_.notify_all();
  return said;
}

void CallQueue::Alarm(std::unique_lock<std::mutex>& lock, const absl::Status& reason) {
  lock.unlock();
  const FlightGroup& group = recorder().group();
  const absl::Status told =
      Annotate(reason, absl::StrFormat("rank %d of group \"%s\"", group.rank, group.name));
  Break(told, /*reported=*/true);
  options_.give_up(told);
  DT_LOG(Error) << "watchdog: " << told.message();
  recorder().SetBroken(told);
  lock.lock();
}

void CallQueue::Abandon(const std::string& reason) {
  std::unique_lock lock(mutex_);
  if (broken_.ok()) {
    Alarm(lock, absl::AbortedError(reason));
  }
}

void CallQueue::Inspect(int64_t now_nanos) {
  std::unique_lock lock(mutex_);
  if (absl::Nanoseconds(now_nanos - inspected_nanos_) > 4 * kWatchPeriod) {
    awake_nanos_ = now_nanos;
  }
  inspected_nanos_ = now_nanos;
  switch (AlarmOf(Snapshot(), now_nanos, options_.timeouts.most)) {
    case QueueAlarm::kStuck:
      return Alarm(lock,
                   absl::DeadlineExceededError(absl::StrFormat(
                       "%s (collective %d) goes on though its limit of %s is over: this rank is "
                       "stuck in it, look at its threads",
                       Describe(run_->call.header), run_->call.header.sequence,
                       absl::FormatDuration(run_timeout_))));
    case QueueAlarm::kNotBegun: {
      const Item& front = *queue_.front();
      return Alarm(lock, absl::DeadlineExceededError(absl::StrFormat(
                             "%s (collective %d) was called %s ago with caller_waits, and nobody "
                             "waits for it: call Wait, or leave caller_waits off",
                             Describe(front.call.header), front.call.header.sequence,
                             absl::FormatDuration(
                                 absl::Milliseconds((now_nanos - front.queued_nanos) / 1000000)))));
    }
    case QueueAlarm::kUnreported: {
      reported_.store(true, std::memory_order_relaxed);
      const absl::Status reason = broken_;
      lock.unlock();
      DT_LOG(Error) << "watchdog: nobody waits for what failed: " << reason.message();
      return recorder().SetBroken(reason);
    }
    case QueueAlarm::kNone:
      break;
  }
  // Peers are asked even while calls are queued: a message starts only when someone waits for it,
  // and the program may compute until then.
  if (broken_.ok() && !running_) {
    if (const absl::Status said = PollPeers(lock); !said.ok()) {
      Alarm(lock, Annotate(said, absl::StrCat("in no collective (", LastCall(now_nanos),
                                              ") when the others gave up")));
    }
  }
}

}  // namespace dtrain::comm
