#include "runtime/checkpoint/step_journal.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/crc32c.h"
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
  if (!engine.flat->device().is_host()) {
    return refuse("the steps of a GPU yet");
  }
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
      leaves_out_(job.config().optimizer().skip_unused),
      stored_(StoredRanges(engine, place_)),
      update_(engine, stored_, JournalType(job)),
      thread_(storage) {}

void StepJournal::Begin(const checkpoint::EpochRecord& epoch,
                        const std::vector<std::string>& journalled) {
  epoch_ = epoch;
  attempt_base_ = engine_.progress.step;
  buffers_.emplace(engine_, journalled);
  // The engine may outlive the journal.
  const auto weak = weak_from_this();
  engine_.hooks.keep_step = [weak](const StepEnd& end) {
    if (const auto journal = weak.lock(); journal != nullptr) {
      journal->Take(end);
    }
  };
  engine_.hooks.update_piece = [weak](const UpdatePiece& piece, const float* gradient,
                                      StepHooks::PartUpdate update) {
    if (const auto journal = weak.lock(); journal != nullptr) {
      journal->update_.Update(piece, gradient, update);
    } else {
      update(0, piece.elements, gradient);
    }
  };
  engine_.hooks.step_updated = [weak] {
    if (const auto journal = weak.lock(); journal != nullptr) {
      journal->Updated();
    }
  };
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
  checkpoint::SegmentHeader header = Header();
  gradient_bytes_ = header.gradient_bytes();
  thread_.Begin(std::move(header));
  on_ = true;
  rate_ = {};
}

void StepJournal::Take(const StepEnd& end) {
  const ScopedPhase phase("dtrain::journal", blocked_s_);
  Append(nullptr);  // A step that the program has not given to MaybeSave.
  if (on_ && weights_.has_value() && *weights_ != WeightsChecksum()) {
    EndAtWrite();
  }
  weights_.reset();
  AwaitDisk(1);  // The gradient's memory is free then.
  Taken taken{.step = end.step, .end = StepEndJson(end)};
  absl::Span<std::byte> into;
  if (on_ && end.updates()) {
    std::vector<std::byte>& memory = thread_.NextGradient();
    memory.resize(gradient_bytes_);
    into = absl::MakeSpan(memory);
    taken.bytes = into.size();
  }
  if (on_) {
    taken_ = std::move(taken);
  }
  is_updating_ = end.updates();
  if (is_updating_) {
    update_.Begin(into);
  }
}

void StepJournal::Updated() {
  if (is_updating_ && update_.FindsWritten() && !leaves_out_) {
    EndAtWrite();
  }
  if (on_ && leaves_out_) {
    weights_ = WeightsChecksum();
  }
}

void StepJournal::EndAtWrite() {
  for_good_ = true;
  SwitchOff("the program has changed weights between two steps, which no replay repeats");
}

uint32_t StepJournal::WeightsChecksum() const {
  uint32_t crc = 0;
  for (const plan::OwnedRange& range : stored_) {
    const auto bytes =
        static_cast<size_t>(range.flat.elements()) * DTypeBytes(engine_.flat->dtype());
    crc = Crc32c(engine_.value_at(range.flat.begin, range.local), bytes, crc);
  }
  return crc;
}

void StepJournal::Append(std::unique_ptr<checkpoint::AfterStep> after) {
  if (!taken_.has_value()) {
    return;
  }
  if (on_) {
    thread_.Append({taken_->step, std::move(taken_->end), taken_->bytes, std::move(after)});
  }
  taken_.reset();
}

void StepJournal::EndStep(const RunState& run) {
  const ScopedPhase phase("dtrain::journal", blocked_s_);
  if (!taken_.has_value() || taken_->step != engine_.progress.step) {
    return;
  }
  auto after = std::make_unique<checkpoint::AfterStep>();
  after->state["tracked"] = run.tracked;
  AddAfter(run.tensors, place_, *after);
  buffers_->Add(engine_, place_, *after);
  Append(std::move(after));
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
