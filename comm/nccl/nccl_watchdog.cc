#include "comm/nccl/nccl_watchdog.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "base/status.h"
#include "base/worker.h"
#include "comm/nccl/nccl_status.h"

namespace dtrain::comm {

NcclWatchdog::NcclWatchdog(NcclWatchdogOptions options, NcclArrivals arrivals)
    : options_(std::move(options)), arrivals_(std::move(arrivals)), timeouts_(options_.timeouts) {
  thread_ = std::thread([this] { Run(); });
}

NcclWatchdog::~NcclWatchdog() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
  for (NcclPending& pending : pending_) {
    free_events_.emplace_back(pending.start, pending.end);
    Finish(pending, absl::AbortedError(absl::StrCat(options_.group, ": destroyed")), 0);
  }
  for (const auto& [start, end] : free_events_) {
    (void)options_.cuda->EventDestroy(start);
    (void)options_.cuda->EventDestroy(end);
  }
}

void NcclWatchdog::Finish(const NcclPending& pending, const absl::Status& status, int64_t nanos) {
  options_.recorder->Ended(pending.ticket, status);
  pending.work->Finish(status, nanos);
}

absl::Status NcclWatchdog::TakeEvents(CudaEvent** start, CudaEvent** end) {
  {
    std::lock_guard lock(mutex_);
    if (!free_events_.empty() && health_.ok()) {
      std::tie(*start, *end) = free_events_.front();
      free_events_.pop_front();
      return absl::OkStatus();
    }
  }
  CudaApi& cuda = *options_.cuda;
  DT_RETURN_IF_ERROR(CudaStatus(cuda, cuda.EventCreate(start, true), "cudaEventCreate"));
  absl::Status second = CudaStatus(cuda, cuda.EventCreate(end, true), "cudaEventCreate");
  if (!second.ok()) {
    (void)cuda.EventDestroy(*start);
  }
  return second;
}

void NcclWatchdog::ReturnEvents(CudaEvent* start, CudaEvent* end) {
  std::lock_guard lock(mutex_);
  free_events_.emplace_back(start, end);
}

void NcclWatchdog::Watch(NcclPending pending) {
  std::unique_lock lock(mutex_);
  if (!health_.ok()) {
    free_events_.emplace_back(pending.start, pending.end);  // Not used again; freed at the end.
    const absl::Status health = health_;
    lock.unlock();
    Finish(pending, health, 0);
    return;
  }
  pending_.push_back(std::move(pending));
  changed_.notify_all();
}

absl::Status NcclWatchdog::health() const {
  std::lock_guard lock(mutex_);
  if (health_.ok() && abort_asked_) {
    return absl::AbortedError(absl::StrCat(options_.group, ": aborted: ", abort_reason_));
  }
  return health_;
}

void NcclWatchdog::Abort(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (!abort_asked_) {
    abort_asked_ = true;
    abort_reason_ = reason;
    changed_.notify_all();
  }
}

size_t NcclWatchdog::pending() const {
  std::lock_guard lock(mutex_);
  return pending_.size();
}

absl::Status NcclWatchdog::Drain(size_t most, Deadline deadline) {
  std::unique_lock lock(mutex_);
  while (pending_.size() > most) {
    if (deadline.Expired()) {
      return absl::DeadlineExceededError(
          absl::StrCat(options_.group, ": ", pending_.size(), " collectives are not finished"));
    }
    changed_.wait_for(
        lock, absl::ToChronoNanoseconds(std::min(deadline.Remaining(), absl::Milliseconds(100))));
  }
  return health_;
}

void NcclWatchdog::Run() {
  PrepareThread("dt-nccl", false);
  (void)options_.cuda->SetDevice(options_.device);
  next_error_look_ = Deadline::After(options_.error_interval);
  next_peer_look_ = Deadline::After(options_.peer_interval);
  std::unique_lock lock(mutex_);
  // An abort asked for just before the end is still carried out: the peers must hear of it.
  while (!stop_ || (abort_asked_ && health_.ok())) {
    if (abort_asked_ && health_.ok()) {
      const std::string text = absl::StrCat(options_.group, ": aborted: ", abort_reason_);
      lock.unlock();
      Break(absl::AbortedError(text));
      lock.lock();
    } else if (pending_.empty()) {
      AwaitNext(lock);
    } else {
      lock.unlock();
      const bool finished = FinishHead();
      const absl::Status verdict = finished ? absl::OkStatus() : Examine();
      if (!verdict.ok()) {
        Break(verdict);
      }
      lock.lock();
      if (!finished && !stop_ && !abort_asked_) {
        changed_.wait_for(lock, absl::ToChronoNanoseconds(options_.poll_interval));
      }
    }
  }
}

void NcclWatchdog::AwaitNext(std::unique_lock<std::mutex>& lock) {
  if (!health_.ok()) {
    changed_.wait(lock);
    return;
  }
  // A rank that is through a collective may be asked about it by one that is stuck in it.
  changed_.wait_for(lock, absl::ToChronoNanoseconds(options_.peer_interval));
  if (pending_.empty() && !stop_ && !abort_asked_ && next_peer_look_.Expired()) {
    lock.unlock();
    next_peer_look_ = Deadline::After(options_.peer_interval);
    AnnounceFinished(arrivals_.Look());  // An abort is the next call's to find.
    lock.lock();
  }
}

bool NcclWatchdog::FinishHead() {
  NcclPending head;
  {
    std::lock_guard lock(mutex_);
    head = pending_.front();  // Only this thread removes.
  }
  const CudaResult result = options_.cuda->EventQuery(head.end);
  if (result != CudaResult::kSuccess) {
    device_error_ = result == CudaResult::kNotReady
                        ? absl::OkStatus()
                        : CudaStatus(*options_.cuda, result, "the device reports an error");
    return false;
  }
  float milliseconds = 0;
  (void)options_.cuda->ElapsedMs(&milliseconds, head.start, head.end);
  timeouts_.Observe(head.header, absl::Milliseconds(milliseconds));
  if (head.sum_to != nullptr) {
    *head.sum_to = *head.sum_from;
  }
  if (head.peer < 0) {
    finished_ = head.sequence + 1;
  }
  std::lock_guard lock(mutex_);
  pending_.pop_front();
  free_events_.emplace_back(head.start, head.end);
  // At least 1 ns: 0 means "not done".
  Finish(head, absl::OkStatus(), 1 + static_cast<int64_t>(milliseconds * 1e6F));
  changed_.notify_all();
  return true;
}

absl::Status NcclWatchdog::Examine() {
  NcclPending head;
  {
    std::lock_guard lock(mutex_);
    head = pending_.front();
  }
  const auto broken = [&](absl::string_view reason) {
    return absl::AbortedError(absl::StrCat(options_.group, ": ", head.what, ": ", reason));
  };
  if (!device_error_.ok()) {
    return broken(device_error_.message());
  }
  NoteStart(head);
  DT_RETURN_IF_ERROR(ExamineTime(head));
  if (next_error_look_.Expired()) {
    next_error_look_ = Deadline::After(options_.error_interval);
    const absl::Status error = options_.communicator->AsyncError();
    if (!error.ok()) {
      return broken(error.message());
    }
  }
  if (next_peer_look_.Expired()) {
    next_peer_look_ = Deadline::After(options_.peer_interval);
    const NcclArrivals::Sight sight = arrivals_.Look();
    if (sight.abort.has_value()) {
      return broken(absl::StrCat("a peer gave up: ", *sight.abort));
    }
    AnnounceFinished(sight);
    if (std::find(sight.asked.begin(), sight.asked.end(), head.sequence) != sight.asked.end()) {
      Announce(head);
    }
  }
  return absl::OkStatus();
}

void NcclWatchdog::NoteStart(const NcclPending& head) {
  if (!Started(head) && options_.cuda->EventQuery(head.start) == CudaResult::kSuccess) {
    started_ = head.ticket;
    limit_ = timeouts_.Of(head.header);
    limit_deadline_ = head.learns ? Deadline::After(limit_) : Deadline::Infinite();
  }
}

absl::Status NcclWatchdog::ExamineTime(const NcclPending& head) {
  const bool over = head.deadline.Expired() || (Started(head) && limit_deadline_.Expired());
  if (!over) {
    return absl::OkStatus();
  }
  if (head.peer >= 0) {
    return Late(head);
  }
  if (asked_ != head.ticket) {
    asked_ = head.ticket;
    grace_ = Deadline::After(kArrivalGrace);
    arrivals_.Ask(head.sequence);
    Announce(head);
  }
  return grace_.Expired() ? Late(head) : absl::OkStatus();
}

void NcclWatchdog::Announce(const NcclPending& head) {
  if (head.peer < 0 && Started(head)) {
    arrivals_.Announce(head.sequence, head.what);
  }
}

void NcclWatchdog::AnnounceFinished(const NcclArrivals::Sight& sight) {
  for (const uint64_t sequence : sight.asked) {
    if (sequence < finished_) {
      arrivals_.Announce(sequence, kThrough);
    }
  }
}

absl::Status NcclWatchdog::Late(const NcclPending& head) {
  std::string known;
  if (!Started(head)) {
    known = "this rank's device has not come to it: what was queued before it goes on";
  } else if (head.peer >= 0) {
    known = absl::StrCat(arrivals_.NameOf(head.peer), " did not take part");
  } else {
    known = arrivals_.Explain(head.sequence, head.what);
  }
  const absl::Duration limit = Started(head) && limit_deadline_.Expired() ? limit_ : head.timeout;
  const std::string step = head.header.step >= 0 ? absl::StrCat(" in step ", head.header.step) : "";
  const std::string which =
      head.peer < 0 ? absl::StrCat(" (collective ", head.header.sequence, ")") : "";
  return absl::DeadlineExceededError(absl::StrCat(options_.group, ": ", head.what, step, which,
                                                  " not finished after ",
                                                  absl::FormatDuration(limit), "; ", known));
}

void NcclWatchdog::Break(const absl::Status& status) {
  DT_LOG(Error) << status.message();
  std::deque<NcclPending> ended;
  {
    std::lock_guard lock(mutex_);
    health_ = absl::AbortedError(status.message());
    ended.swap(pending_);
  }
  options_.communicator->Abort();
  for (NcclPending& pending : ended) {
    {
      std::lock_guard lock(mutex_);
      free_events_.emplace_back(pending.start, pending.end);
    }
    Finish(pending, status, 0);
  }
  arrivals_.AnnounceAbort(std::string(status.message()));
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

}  // namespace dtrain::comm
