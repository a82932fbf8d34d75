#include "runtime/checkpoint/journal_thread.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/threads/bounded_queue.h"
#include "checkpoint/journal/journal.h"

namespace dtrain {

JournalThread::JournalThread(checkpoint::Storage& storage)
    : storage_(storage),
      worker_({.name = "dtrain-journal", .queue_capacity = 8, .low_priority = true}) {}

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
  const std::vector<std::byte>& gradient = gradients_[next_];
  next_ = 1 - next_;
  // A std::function wants what can be copied.
  worker_.Submit([this, step = std::make_shared<Step>(std::move(step)), &gradient] {
    const absl::Cleanup end = [this] {  // Also after an exception.
      {
        const std::lock_guard lock(mutex_);
        --left_;
      }
      changed_.notify_all();
    };
    Write(*step, gradient);
  });
}

void JournalThread::Write(const Step& step, const std::vector<std::byte>& gradient) {
  if (segment_ == nullptr || !failure().ok()) {
    return;
  }
  const int64_t begin = Clock::Real().MonotonicNanos();
  const uint64_t bytes = segment_->bytes();
  const absl::Status written =
      segment_->Append({.step = step.step,
                        .end = step.end,
                        .gradient = absl::MakeConstSpan(gradient).subspan(0, step.bytes),
                        .after = step.after.get()});
  const std::lock_guard lock(mutex_);
  failure_.Update(written);
  work_.seconds += static_cast<double>(Clock::Real().MonotonicNanos() - begin) * 1e-9;
  work_.bytes += segment_->bytes() - bytes;
  work_.steps += written.ok() ? 1 : 0;
}

void JournalThread::RemoveBefore(const checkpoint::StepId& id) {
  const auto remove = [this, id] {
    if (const absl::Status removed = checkpoint::RemoveSegmentsBefore(storage_, id);
        !removed.ok()) {
      DT_LOG(Warning) << "cannot remove journalled steps before " << id.ToString() << ": "
                      << removed.message();
    }
  };
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
