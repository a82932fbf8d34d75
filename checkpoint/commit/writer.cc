#include "checkpoint/commit/writer.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/threads/bounded_queue.h"
#include "checkpoint/commit/retention.h"
#include "checkpoint/commit/save_attempt.h"

namespace dtrain::checkpoint {
namespace {

void LogNotRemoved(const absl::Status& status) {
  if (!status.ok() && !absl::IsCancelled(status)) {
    DT_LOG(Warning) << "old checkpoints were not all removed: " << status.message();
  }
}

}  // namespace

Writer::Writer(Storage& storage, WriterOptions options)
    : storage_(storage), options_(std::move(options)), last_(options_.epoch.resumed_from) {
  if (last_) {
    verified_.insert(*last_);  // The ranks that resumed from it have read all of it.
  }
}

SaveReport Writer::Save(int64_t step, StateSource& source, Exchange& exchange) {
  const int64_t begin = Clock::Real().MonotonicNanos();
  SaveReport report;
  report.id = {options_.epoch.epoch, step};
  if (step < 0 || step > kStepMax) {
    report.status = absl::InvalidArgumentError(
        absl::StrCat("step ", step, " cannot be saved; steps go from 0 to ", kStepMax));
    return report;
  }
  AwaitCollector();
  absl::Status room;
  const auto make_room = [&] {
    if (!is_collected_ && !(IsEnding() && HasRoom())) {
      room = CollectOld(report.id, nullptr);
    }
  };
  SaveVerdict verdict =
      SaveAttempt(storage_, options_, last_, report.id, source, exchange, make_room).Run();
  report.outcome = static_cast<SaveOutcome>(verdict.outcome);
  report.status = Annotate(verdict.status, absl::StrCat("save of step ", step));
  report.bytes = verdict.bytes;
  report.seconds = static_cast<double>(Clock::Real().MonotonicNanos() - begin) * 1e-9;
  if (!report.durable()) {
    is_collected_ = false;  // This save may leave files behind.
    LogNotRemoved(room);
    return report;
  }
  last_ = report.id;
  last_bytes_ = report.bytes;
  if (options_.verify_after_write) {
    verified_.insert(report.id);
  }
  if (exchange.rank() != 0 || report.outcome != SaveOutcome::kCommitted) {
    return report;
  }
  const std::string folder = report.id.DirectoryName();
  if (const absl::Status status = storage_.Replace(kLatestName, absl::StrCat(folder, "\n"));
      !status.ok()) {
    DT_LOG(Warning) << "the hint `latest` was not updated: " << status.message();
  }
  if (options_.on_durable) {
    options_.on_durable({report.id, storage_.DisplayName(folder), report.bytes, report.seconds});
  }
  CollectAfter(report.id);
  return report;
}

void Writer::CollectAfter(StepId current) {
  is_collected_ = false;  // Also after an exception.
  if (IsEnding()) {
    return;
  }
  const auto collect = [this, current] {
    const absl::Status collected = CollectOld(current, options_.leaves_old);
    is_collected_ = collected.ok();
    LogNotRemoved(collected);
  };
  if (!options_.collect_beside) {
    collect();
    return;
  }
  if (collector_ == nullptr) {
    collector_ = std::make_unique<Worker>(
        WorkerOptions{.name = "dtrain-collect", .queue_capacity = 2, .low_priority = true});
  }
  collector_->Submit(collect);
}

void Writer::AwaitCollector() {
  if (collector_ == nullptr) {
    return;
  }
  const auto idle = std::make_shared<BoundedQueue<bool>>(1);
  collector_->Submit([idle] { idle->TryPush(true); });
  idle->Pop();
}

bool Writer::HasRoom() {
  const uint64_t free = storage_.FreeBytes().value_or(std::numeric_limits<uint64_t>::max());
  return last_bytes_ > 0 && free / 2 > last_bytes_;
}

absl::Status Writer::CollectOld(StepId current, const std::atomic<bool>* gives_up) {
  return Collect(storage_, current, options_.keep, options_.epoch.resumed_from,
                 options_.in_use ? options_.in_use() : std::set<StepId>(), verified_, gives_up);
}

}  // namespace dtrain::checkpoint
