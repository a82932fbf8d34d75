#include "runtime/checkpoint/journal/step_journal.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/status.h"
#include "runtime/checkpoint/model_tensors.h"
#include "runtime/job/job_state.h"
#include "runtime/model/phase.h"

namespace dtrain {
namespace {

// Steps over which the share of time is taken that writing needs.
constexpr int64_t kRateSteps = 20;
// A disk that does not write a step in this time hangs.
constexpr absl::Duration kDiskWaitMax = absl::Seconds(5);

absl::Duration DeviceWaitMax(const Job& job) {
  return absl::Seconds(job.config().comm_timeout_seconds());
}

DType JournalType(const Job& job) {
  return job.config().checkpoint_journal_dtype() == "fp32" ? DType::kFloat32 : DType::kBFloat16;
}

}  // namespace

Json UpdateSettings(const Config& config) {
  Json settings = Json::object();
  const Json values = config.values_in_force();
  for (const char* const key :
       {"optimizer", "scheduler", "gradient_clipping", "gradient_clipping_value", "fp16", "bf16",
        "prescale_gradients", "gradient_predivide_factor", "train_steps", "seed"}) {
    if (const auto found = values.find(key); found != values.end()) {
      settings[key] = *found;
    }
  }
  return settings;
}

absl::Status StepJournal::Check(const Job& job, const EngineState& engine, size_t engines) {
  const OptimizerConfig& optimizer = job.config().optimizer();
  const auto refuse = [](absl::string_view what) {
    return absl::UnimplementedError(
        absl::StrCat("checkpoint.journal cannot hold ", what, "; set it to \"off\""));
  };
  if (engines > 1) {
    return refuse(absl::StrFormat("the steps of %d engines", engines));
  }
  if (engine.options.optimizer != nullptr) {
    return refuse("steps of the program's own optimizer, which may look beyond elements");
  }
  if (optimizer.kind == OptimizerConfig::Kind::kLamb ||
      optimizer.kind == OptimizerConfig::Kind::kMuon) {
    return refuse(absl::StrFormat("steps of %s, which looks at whole tensors", optimizer.name()));
  }
  return absl::OkStatus();
}

StepJournal::StepJournal(Job& job, checkpoint::Storage& storage, EngineState& engine,
                         RankPlace place)
    : job_(job),
      engine_(engine),
      place_(std::move(place)),
      sync_(job.config().checkpoint_journal() == "sync"),
      stored_(StoredRanges(engine, place_)),
      update_(MakeJournalUpdate(engine, stored_,
                                {.dtype = JournalType(job),
                                 .leaves_out = job.config().optimizer().skip_unused,
                                 .timeout = DeviceWaitMax(job)})),
      thread_(storage) {}

void StepJournal::Begin(const checkpoint::EpochRecord& epoch,
                        const std::vector<std::string>& journalled) {
  epoch_ = epoch;
  attempt_base_ = engine_.progress.step;
  after_.emplace(engine_, place_, journalled, DeviceWaitMax(job_));
  // The engine may outlive the journal.
  const auto weak = weak_from_this();
  engine_.hooks.keep_step = [weak](const StepEnd& end) {
    if (const auto journal = weak.lock(); journal != nullptr) {
      journal->Take(end);
    }
  };
  update_->Listen(engine_.hooks);
  engine_.hooks.step_updated = [weak] {
    if (const auto journal = weak.lock(); journal != nullptr) {
      journal->Updated();
    }
  };
  if (const absl::Status made = update_->Allocate(); !made.ok()) {
    for_good_ = true;
    SwitchOff(std::string(made.message()));
  }
  Rotate();
}

checkpoint::SegmentHeader StepJournal::Header() const {
  checkpoint::SegmentHeader header{.job = epoch_.job,
                                   .id = {epoch_.epoch, engine_.progress.step},
                                   .attempt_base = attempt_base_,
                                   .rank = place_.rank,
                                   .world_size = place_.world_size,
                                   .layout_hash = LayoutHash(engine_),
                                   .settings = UpdateSettings(job_.config()),
                                   .dtype = JournalType(job_)};
  for (const plan::OwnedRange& range : stored_) {
    header.ranges.push_back({range.flat.begin, range.flat.end});
  }
  return header;
}

void StepJournal::Rotate() {
  Record();
  if (for_good_ || (!on_ && !thread_.WaitUntilLeft(0, Deadline::After(kDiskWaitMax)))) {
    return;  // It stays off, or its disk still hangs.
  }
  thread_.Begin(Header());
  on_ = true;
  rate_ = {};
}

void StepJournal::Take(const StepEnd& end) {
  const ScopedPhase phase("dtrain::journal", blocked_s_);
  Append(nullptr);  // A step that the program has not given to MaybeSave.
  const bool is_written = update_->FindsWritten();
  if (on_ && is_written) {
    EndAtWrite();
  }
  AwaitDisk(1);  // The gradient's memory is free then.
  update_->Begin(end, on_);
  if (on_) {
    taken_ = Taken{.step = end.step};
  }
}

void StepJournal::Updated() {
  const bool is_written = update_->End();
  if (taken_.has_value()) {
    taken_->has_ended = true;
  }
  if (on_ && is_written) {
    EndAtWrite();
  }
}

void StepJournal::EndAtWrite() {
  for_good_ = true;
  SwitchOff("the program has changed weights between two steps, which no replay repeats");
}

void StepJournal::Append(LateAfter after) {
  const auto taken = std::exchange(taken_, std::nullopt);
  if (on_ && taken.has_value() && taken->has_ended) {
    thread_.Append({taken->step, update_->Take(), std::move(after)});
  }
}

void StepJournal::EndStep(const RunState& run) {
  const ScopedPhase phase("dtrain::journal", blocked_s_);
  if (!taken_.has_value() || taken_->step != engine_.progress.step) {
    return;
  }
  Append(after_->Take(run));
  if (sync_) {
    update_->Await();
  }
  AwaitDisk(sync_ ? 0 : 1);
  SwitchOffIfNeeded();
}

void StepJournal::AwaitDisk(int steps) {
  if (!on_ || thread_.WaitUntilLeft(steps, Deadline::After(absl::ZeroDuration()))) {
    return;
  }
  const InnerPhase save(job_.state().heartbeat.get(), "save");
  if (!thread_.WaitUntilLeft(steps, Deadline::After(kDiskWaitMax))) {
    SwitchOff(absl::StrFormat("the disk has not written a step for %d seconds",
                              absl::ToInt64Seconds(kDiskWaitMax)));
  }
}

void StepJournal::SwitchOffIfNeeded() {
  if (!on_) {
    return;
  }
  if (const absl::Status failure = thread_.failure(); !failure.ok()) {
    SwitchOff(std::string(failure.message()));
    return;
  }
  const int64_t now = Clock::Real().MonotonicNanos();
  const double written_s = thread_.work().seconds;
  if (rate_.begin_nanos == 0) {
    rate_ = {0, now, written_s};
    return;
  }
  if (++rate_.steps < kRateSteps) {
    return;
  }
  const double share =
      (written_s - rate_.written_s) / (static_cast<double>(now - rate_.begin_nanos) * 1e-9);
  rate_ = {0, now, written_s};
  if (const double allowed = job_.config().checkpoint_journal_share(); share > allowed) {
    SwitchOff(
        absl::StrFormat("the disk was busy with it for %.0f %% of the time of the last %d steps; "
                        "checkpoint.journal_share allows %.0f %%",
                        share * 100, kRateSteps, allowed * 100));
  }
}

void StepJournal::SwitchOff(const std::string& why) {
  on_ = false;
  taken_.reset();
  job_.metrics().LogEvent(EventKind::kEvent, engine_.progress.step,
                          {{"name", "journal_off"}, {"why", why}, {"m", {{"journal/off", 1}}}});
  DT_LOG(Warning) << "the step journal is off behind step " << engine_.progress.step << ": " << why
                  << (for_good_ ? ". It stays off; the checkpoints hold the run"
                                : ". It begins anew with the next checkpoint");
}

void StepJournal::Record() {
  const JournalThread::Work work = thread_.work();
  if (work.steps == recorded_.steps) {
    return;
  }
  job_.metrics().LogEvent(EventKind::kEvent, engine_.progress.step,
                          {{"name", "journal"},
                           {"steps", work.steps - recorded_.steps},
                           {"m",
                            {{"journal/bytes", work.bytes - recorded_.bytes},
                             {"journal/seconds", work.seconds - recorded_.seconds},
                             {"time/journal_s", std::exchange(blocked_s_, 0)}}}});
  recorded_ = work;
}

void StepJournal::Finish() {
  Append(nullptr);
  thread_.WaitUntilIdle();
  SwitchOffIfNeeded();
  Record();
}

}  // namespace dtrain
