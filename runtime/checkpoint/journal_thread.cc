#include "runtime/checkpoint/journal_thread.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
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

std::vector<std::byte>& JournalThread::NextGradient() {
  WaitUntilLeft(1);
  return gradients_[next_];
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
  worker_.Submit([this, id] {
    if (const absl::Status removed = checkpoint::RemoveSegmentsBefore(storage_, id);
        !removed.ok()) {
      DT_LOG(Warning) << "cannot remove journalled steps before " << id.ToString() << ": "
                      << removed.message();
    }
  });
}

void JournalThread::WaitUntilLeft(int steps) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return left_ <= steps; });
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
