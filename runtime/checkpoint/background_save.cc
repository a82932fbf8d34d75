#include "runtime/checkpoint/background_save.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/check.h"

namespace dtrain {

BackgroundSave::BackgroundSave(checkpoint::Writer& writer, checkpoint::Exchange& exchange,
                               uint64_t staging_bytes)
    : writer_(writer),
      exchange_(exchange),
      pool_(staging_bytes),
      worker_({.name = "dtrain-save", .queue_capacity = 1, .low_priority = true}) {}

BackgroundSave::~BackgroundSave() { Wait(); }

void BackgroundSave::Start(int64_t step, EngineSnapshot snapshot) {
  DT_CHECK(!running()) << "one save at a time";
  source_ = std::make_shared<checkpoint::StagedSource>(std::move(snapshot.source), pool_);
  keep_ = std::move(snapshot.keep);
  worker_.Submit([this, step, source = source_] { Run(step, *source); });
}

void BackgroundSave::Run(int64_t step, checkpoint::StagedSource& source) {
  checkpoint::SaveReport report;
  report.id.step = step;
  report.status = absl::InternalError("the thread that saves met an exception");
  // Also after an exception, so that nobody waits for this save for ever.
  const absl::Cleanup end = [&] {
    source.Close();
    {
      const std::lock_guard lock(mutex_);
      report_ = std::move(report);
    }
    ended_.notify_all();
  };
  source.CopyAhead();
  report = writer_.Save(step, source, exchange_);
}

void BackgroundSave::LetUpdate() {
  if (running()) {
    source_->LetUpdate();
  }
}

std::optional<checkpoint::SaveReport> BackgroundSave::Take() {
  const std::lock_guard lock(mutex_);
  return report_.has_value() ? std::optional(End()) : std::nullopt;
}

std::optional<checkpoint::SaveReport> BackgroundSave::Wait() {
  if (!running()) {
    return std::nullopt;
  }
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return report_.has_value(); });
  return End();
}

checkpoint::SaveReport BackgroundSave::End() {
  checkpoint::SaveReport report = *std::move(report_);
  report_.reset();
  source_.reset();
  keep_.clear();
  const absl::Status status = worker_.status();
  if (!report.durable() && !status.ok()) {
    report.status = status;
  }
  return report;
}

}  // namespace dtrain
