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
#include "base/threads/worker.h"
#include "comm/nccl/nccl_abort.h"
#include "comm/nccl/nccl_status.h"

namespace dtrain::comm {

NcclWatchdog::NcclWatchdog(NcclWatchdogOptions options, NcclArrivals arrivals)
    : options_(std::move(options)),
      peers_(std::move(arrivals), options_.peer_interval),
      timeouts_(options_.timeouts) {
  thread_ = std::thread([this] { Run(); });
  options_.family->Join(this, [this](const std::string& reason) { Abort(reason); });
}

NcclWatchdog::~NcclWatchdog() {
  options_.family->Leave(this);
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
    free_events_.emplace_back(pending.start, pending.end);  // The destructor frees them.
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
  return HealthLocked();
}

absl::Status NcclWatchdog::HealthLocked() const {
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
  return HealthLocked();
}

void NcclWatchdog::Run() {
  PrepareThread("dt-nccl", false);
  (void)options_.cuda->SetDevice(options_.device);
  next_error_poll_ = Deadline::After(options_.error_interval);
  std::unique_lock lock(mutex_);
  // An abort that was asked for just before the end is still carried out, so that the peers learn
  // of it.
  while (!stop_ || (abort_asked_ && health_.ok())) {
    if (abort_asked_ && health_.ok()) {
      const std::string text = absl::StrCat(options_.group, ": aborted: ", abort_reason_);
      lock.unlock();
      Break(absl::AbortedError(text));
      lock.lock();
    } else if (pending_.empty()) {
      changed_.wait(lock);  // The next call finds a peer's abort.
    } else {
      lock.unlock();
      const bool finished = FinishHead();
      const absl::Status verdict = finished ? absl::OkStatus() : Examine();
      if (!verdict.ok()) {
        Break(verdict);
      }
      lock.lock();
      if (!finished && !stop_ && !abort_asked_) {
        const bool waited = *waiters_ > 0;
        changed_.wait_for(lock, absl::ToChronoNanoseconds(waited ? options_.waited_poll_interval
                                                                 : options_.poll_interval));
      }
    }
  }
}

const NcclPending* NcclWatchdog::Head() const {
  std::lock_guard lock(mutex_);
  return pending_.empty() ? nullptr : &pending_.front();
}

bool NcclWatchdog::FinishHead() {
  const NcclPending& head = *Head();
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
    peers_.FinishedBefore(head.sequence + 1);
  }
  std::lock_guard lock(mutex_);
  const NcclPending done = std::move(pending_.front());
  pending_.pop_front();
  free_events_.emplace_back(done.start, done.end);
  // At least 1 ns, because 0 means "not done".
  Finish(done, absl::OkStatus(), 1 + static_cast<int64_t>(milliseconds * 1e6F));
  changed_.notify_all();
  return true;
}

absl::Status NcclWatchdog::Examine() {
  const NcclPending& head = *Head();
  const auto broken = [&](absl::string_view reason) {
    return absl::AbortedError(absl::StrCat(options_.group, ": ", head.what, ": ", reason));
  };
  if (!device_error_.ok()) {
    return broken(device_error_.message());
  }
  NoteStart(head);
  DT_RETURN_IF_ERROR(ExamineTime(head));
  if (next_error_poll_.Expired()) {
    next_error_poll_ = Deadline::After(options_.error_interval);
    const absl::Status error = options_.communicator->AsyncError();
    if (!error.ok()) {
      return broken(error.message());
    }
  }
  if (const auto abort = peers_.abort(); abort.has_value()) {
    return broken(absl::StrCat("a peer gave up: ", *abort));
  }
  return absl::OkStatus();
}

void NcclWatchdog::NoteStart(const NcclPending& head) {
  if (!Started(head) && options_.cuda->EventQuery(head.start) == CudaResult::kSuccess) {
    started_ = head.ticket;
    limit_ = timeouts_.Of(head.header);
    limit_deadline_ = head.learns ? Deadline::After(limit_) : Deadline::Infinite();
    if (head.peer < 0) {
      peers_.Entered(head.sequence, head.what);
    }
  }
}

absl::Status NcclWatchdog::ExamineTime(const NcclPending& head) {
  const bool over = head.deadline.Expired() || (Started(head) && limit_deadline_.Expired());
  if (!over) {
    return absl::OkStatus();
  }
  if (head.peer >= 0) {
    return TimeoutError(head);
  }
  if (asked_ != head.ticket) {
    asked_ = head.ticket;
    grace_ = Deadline::After(kArrivalGrace);
    peers_.Ask(head.sequence);
  }
  return grace_.Expired() ? TimeoutError(head) : absl::OkStatus();
}

absl::Status NcclWatchdog::TimeoutError(const NcclPending& head) {
  std::string known;
  if (!Started(head)) {
    known = "this rank's device has not come to it: what was queued before it goes on";
  } else if (head.peer >= 0) {
    known = absl::StrCat(peers_.NameOf(head.peer), " did not take part");
  } else {
    known = peers_.Explain(head.sequence, head.what);
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
  const std::string reason(status.message());
  std::deque<NcclPending> ended;
  {
    std::lock_guard lock(mutex_);
    health_ = absl::AbortedError(reason);
    ended.swap(pending_);
    for (const NcclPending& pending : ended) {
      free_events_.emplace_back(pending.start, pending.end);
    }
    changed_.notify_all();
  }
  for (const NcclPending& pending : ended) {
    Finish(pending, status, 0);
  }
  options_.family->AbortOthers(this, reason);
  peers_.AnnounceAbort(reason);
  AbortOrEndProcess(options_.communicator, options_.abort_bound, options_.group);
}

}  // namespace dtrain::comm
