#include "runtime/checkpoint/journal/journal_thread.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/threads/bounded_queue.h"
#include "checkpoint/journal/journal.h"
#include "runtime/checkpoint/journal/journal_record.h"
#include "runtime/job/exception_status.h"

namespace dtrain {

void RemoveJournalBefore(checkpoint::Storage& storage, const checkpoint::StepId& id) {
  if (const absl::Status removed = checkpoint::RemoveSegmentsBefore(storage, id); !removed.ok()) {
    DT_LOG(Warning) << "cannot remove journalled steps before " << id.ToString() << ": "
                    << removed.message();
  }
}

JournalThread::JournalThread(checkpoint::Storage& storage)
    : storage_(storage),
      // The next step waits for it. At a low priority it would get a tenth of a busy core, and what
      // is seconds of the disk could not be told from seconds without a core.
      worker_({.name = "dtrain-journal", .queue_capacity = 8, .low_priority = false}) {}

void JournalThread::Begin(checkpoint::SegmentHeader header) {
  worker_.Submit([this, header = std::move(header)] {
    segment_.reset();  // All of it is durable.
    auto segment = checkpoint::SegmentWriter::Create(storage_, header);
    const std::lock_guard lock(mutex_);
    failure_ = segment.status();
    if (segment.ok()) {
      segment_ = *std::move(segment);
    }
  });
}

void JournalThread::Append(Step step) {
  {
    const std::lock_guard lock(mutex_);
    ++left_;
  }
  // A std::function wants what can be copied.
  worker_.Submit([this, step = std::make_shared<Step>(std::move(step))] {
    const absl::Cleanup end = [this] {  // Also after an exception.
      {
        const std::lock_guard lock(mutex_);
        --left_;
      }
      changed_.notify_all();
    };
    Write(*step);
  });
}

void JournalThread::Write(const Step& step) {
  if (segment_ == nullptr || !failure().ok()) {
    return;
  }
  double seconds = 0;
  const uint64_t bytes = segment_->bytes();
  // A record that an exception has cut off ends the segment: none would be found behind it.
  const absl::Status written = CallSafely([] { return "in the step journal's thread"; },
                                          [&] { return Append(step, seconds); });
  const std::lock_guard lock(mutex_);
  failure_.Update(written);
  work_.seconds += seconds;
  work_.bytes += segment_->bytes() - bytes;
  work_.steps += written.ok() ? 1 : 0;
}

absl::Status JournalThread::Append(const Step& step, double& seconds) {
  DT_ASSIGN_OR_RETURN(const KeptUpdate update, step.update());
  std::shared_ptr<const checkpoint::AfterStep> after;
  if (step.after != nullptr) {
    DT_ASSIGN_OR_RETURN(after, step.after());
  }
  const int64_t begin = Clock::Real().MonotonicNanos();
  const absl::Status written = segment_->Append({.step = step.step,
                                                 .end = StepEndJson(update.end),
                                                 .gradient = update.gradient,
                                                 .after = after.get()});
  seconds = static_cast<double>(Clock::Real().MonotonicNanos() - begin) * 1e-9;
  return written;
}

void JournalThread::RemoveBefore(const checkpoint::StepId& id) {
  const auto remove = [this, id] { RemoveJournalBefore(storage_, id); };
  worker_.Submit(remove, Deadline::After(absl::ZeroDuration()));
}

bool JournalThread::WaitUntilLeft(int steps, Deadline deadline) {
  const auto is_reached = [&] { return left_ <= steps; };
  std::unique_lock lock(mutex_);
  if (deadline.infinite()) {
    changed_.wait(lock, is_reached);
    return true;
  }
  return changed_.wait_for(lock, absl::ToChronoNanoseconds(deadline.Remaining()), is_reached);
}

void JournalThread::WaitUntilIdle() {
  const auto idle = std::make_shared<BoundedQueue<bool>>(1);
  worker_.Submit([idle] { idle->TryPush(true); });
  idle->Pop(Deadline::Infinite());
}

absl::Status JournalThread::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

JournalThread::Work JournalThread::work() const {
  const std::lock_guard lock(mutex_);
  return work_;
}

}  // namespace dtrain
