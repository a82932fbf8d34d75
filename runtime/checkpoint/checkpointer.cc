#include "dtrain/checkpointer.h"

#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "base/system/move_aside.h"
#include "checkpoint/commit/writer.h"
#include "runtime/checkpoint/background_save.h"
#include "runtime/checkpoint/engine_snapshot.h"
#include "runtime/checkpoint/group_exchange.h"
#include "runtime/checkpoint/journal/run_journal.h"
#include "runtime/checkpoint/known_save.h"
#include "runtime/checkpoint/restore/state_restore.h"
#include "runtime/checkpoint/save_policy.h"
#include "runtime/checkpoint/staging_memory.h"
#include "runtime/checkpoint/storage_room.h"
#include "runtime/checkpoint/tiers/checkpoint_tiers.h"
#include "runtime/checkpoint/tracked_objects.h"
#include "runtime/checkpoint/tracked_tensors.h"
#include "runtime/job/job_state.h"
#include "runtime/job/stop_reason.h"
#include "runtime/model/phase.h"

namespace dtrain {
namespace {

// Where training is when the end of a save is recorded.
enum class SaveKind {
  kInStep,      // It has stood still meanwhile.
  kAtEnd,       // The job ends, and its end gives the reason of a failed save.
  kBackground,  // It went on meanwhile.
};

}  // namespace

struct Checkpointer::State {
  Job& job;
  GroupExchange exchange;
  std::unique_ptr<CheckpointTiers> tiers;
  checkpoint::Storage* storage = nullptr;      // The tiers'; saves go there.
  checkpoint::EpochRecord epoch;               // This attempt's, once it has begun.
  std::atomic<bool> stops{false};              // The job stops behind this step.
  std::unique_ptr<checkpoint::Writer> writer;  // Null before the attempt has begun.
  TrackedObjects tracked;
  int64_t saved_step = -1;
  int64_t started_step = -1;                   // The last one whose save began in the background.
  std::shared_ptr<BackgroundSave> background;  // Null without checkpoint.async.
  int64_t skipped_saves = 0;                   // Came due while another one was under way.
  RunJournal journal;

  explicit State(Job& j)
      : job(j),
        exchange(j.group(), j.state().heartbeat.get()),
        tracked(j),
        background(j.config().checkpoint_async() ? std::make_shared<BackgroundSave>(j) : nullptr),
        journal(j, tracked.engines()) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

  absl::Duration timeout() const { return absl::Seconds(job.config().comm_timeout_seconds()); }
  // Begins an attempt. `about`: whether it is fresh, and what is damaged.
  absl::StatusOr<std::unique_ptr<checkpoint::Checkpoint>> Begin(checkpoint::AttemptOptions about);
  // Checks what is tracked, and begins a fresh attempt where none was begun.
  absl::Status PrepareSave();
  // The newest whole checkpoint, which engines and tensors hold then; null: the run begins.
  absl::StatusOr<std::unique_ptr<checkpoint::Checkpoint>> ReadLatest(std::string& note);
  // Goes on from a checkpoint that was read.
  absl::Status Resume(const checkpoint::Checkpoint& from, std::string note);
  checkpoint::SaveReport Save(int64_t step, SaveKind kind);
  checkpoint::SaveReport Write(int64_t step);
  // Saves beside training: starts one, or skips it because one is still under way on some rank.
  absl::Status StartSave(int64_t step);
  // Records how a save in the background ended. FailedPrecondition: this job is fenced.
  absl::Status End(const std::optional<checkpoint::SaveReport>& ended);
  // The same of the save under way, if it has ended, or after waiting for it.
  absl::Status EndBackground(bool wait);
  // Collective: whether every rank knows that `step` is saved.
  absl::StatusOr<bool> IsSaved(int64_t step);
  void Record(const checkpoint::SaveReport& report, double seconds, SaveKind kind);
  // The next steps follow a checkpoint of the engine's step.
  void RotateJournal();
};

Checkpointer::State::~State() {
  if (background != nullptr) {  // A run that fails has this save too.
    End(background->WaitToEnd()).IgnoreError();
  }
}

absl::StatusOr<std::unique_ptr<Checkpointer>> Checkpointer::Open(Job& job) {
  DT_RETURN_IF_ERROR(CheckStagingMemory(job));
  auto state = std::make_unique<State>(job);
  DT_ASSIGN_OR_RETURN(state->tiers, CheckpointTiers::Open(job, state->exchange));
  state->storage = &state->tiers->storage();
  return std::unique_ptr<Checkpointer>(new Checkpointer(std::move(state)));
}

Checkpointer::Checkpointer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpointer::~Checkpointer() = default;

void Checkpointer::Track(const std::string& name, Engine& engine) {
  state_->tracked.Add(name, engine);
}

void Checkpointer::Track(const std::string& name, Tracked& state) {
  state_->tracked.Add(name, state);
}

void Checkpointer::Track(const std::string& name, std::vector<TrackedTensor> tensors) {
  state_->tracked.Add(name, std::move(tensors));
}

absl::StatusOr<std::unique_ptr<checkpoint::Checkpoint>> Checkpointer::State::Begin(
    checkpoint::AttemptOptions about) {
  DT_RETURN_IF_ERROR(journal.Check());
  about.job = job.run_id();
  about.verify = checkpoint::Verify::kSizes;  // What is read is what is verified.
  about.known_save = [this] { return LastKnownSave(job.run_dir()); };
  DT_ASSIGN_OR_RETURN(auto attempt, tiers->Begin(std::move(about)));
  DT_RETURN_IF_ERROR(job.rank() == 0 ? EndFreshStart(job.run_dir()) : absl::OkStatus());
  epoch = attempt.epoch;
  checkpoint::WriterOptions options;
  options.epoch = attempt.epoch;
  options.keep = KeptCheckpoints(job.config());
  options.shard_bytes_max = static_cast<uint64_t>(job.config().checkpoint_shard_bytes_max());
  options.exchange_timeout = timeout();
  // Else a save is beside training as a whole, or other hosts must stay until it has ended.
  options.collect_beside = background == nullptr && tiers->host().empty();
  options.in_use = [this] { return tiers->InUse(); };
  options.leaves_old = &stops;
  writer = std::make_unique<checkpoint::Writer>(*storage, options);
  return std::move(attempt.checkpoint);
}

absl::Status Checkpointer::State::PrepareSave() {
  DT_RETURN_IF_ERROR(tracked.CheckSavable());
  return writer == nullptr ? Begin({.fresh = true}).status() : absl::OkStatus();
}

// Begins anew from the checkpoint before one that turns out to be damaged while it is read.
absl::StatusOr<std::unique_ptr<checkpoint::Checkpoint>> Checkpointer::State::ReadLatest(
    std::string& note) {
  checkpoint::AttemptOptions about;
  about.fresh = job.state().fresh;
  StateRestore restore(job, tracked.engines(), tracked.tensors(), tracked.place());
  while (true) {
    DT_ASSIGN_OR_RETURN(auto found, Begin(about));
    if (found == nullptr) {
      return found;
    }
    DT_ASSIGN_OR_RETURN(const auto outcome, restore.Read(*found, exchange));
    if (outcome.damage.ok()) {
      DT_ASSIGN_OR_RETURN(note, restore.Apply());
      return found;
    }
    about.damaged[found->manifest().id] = {outcome.damage, epoch.epoch};
  }
}

absl::Status Checkpointer::State::Resume(const checkpoint::Checkpoint& from, std::string note) {
  const bool is_import = HoldsWeightsAlone(from);  // Tracked states begin as new.
  const checkpoint::Manifest& manifest = from.manifest();
  // With another number of ranks every rank takes rank 0's: positions count global steps.
  const size_t rank = manifest.world_size == job.world_size() ? static_cast<size_t>(job.rank()) : 0;
  const Json& mine = manifest.rank_state.at(rank);
  saved_step = manifest.id.step;
  if (!is_import) {  // Else it is a file of the user's, and of no run yet.
    tiers->CopyRestored(manifest.id);
  }
  DT_ASSIGN_OR_RETURN(const Replayed replayed,
                      journal.Replay({*storage, manifest.id, exchange, timeout()},
                                     tracked.tensors(), tracked.place()));
  const auto saved = mine.find("tracked");
  if (replayed.steps > 0 || !is_import) {
    DT_RETURN_IF_ERROR(tracked.states().Restore(replayed.steps > 0    ? replayed.tracked
                                                : saved != mine.end() ? *saved
                                                                      : Json::object(),
                                                from.DisplayName()));
  }
  Json record = {{"restored", manifest.id.step + replayed.steps},
                 {"path", from.DisplayName()},
                 {"saved_unix_s", static_cast<double>(manifest.created_unix_ms) * 1e-3}};
  if (replayed.steps > 0) {
    absl::StrAppend(&note, "; ", replayed.steps, " steps replayed from the journal");
    record["replayed"] = replayed.steps;
  }
  job.metrics().SetStep(manifest.id.step + replayed.steps);
  record["note"] = note;
  job.metrics().LogEvent(EventKind::kCheckpoint, record);
  journal.Begin(*storage, epoch, tracked.place(), replayed.buffers);
  return absl::OkStatus();
}

absl::Status Checkpointer::RestoreLatest() {
  DT_RETURN_IF_ERROR(state_->tracked.Check());
  DT_RETURN_IF_ERROR(state_->EndBackground(/*wait=*/true));
  DT_ASSIGN_OR_RETURN(const uint64_t bytes, state_->tracked.EngineBytes());
  DT_RETURN_IF_ERROR(state_->tracked.CheckTensors());
  if (state_->job.rank() == 0) {
    WarnOfLittleRoom(*state_->storage, bytes);
  }
  DT_RETURN_IF_ERROR(state_->tiers->CheckRoom(bytes));
  std::string note;
  DT_ASSIGN_OR_RETURN(const auto checkpoint, state_->ReadLatest(note));
  state_->tracked.Snapshots();  // Now, before a GPU has steps to end.
  if (checkpoint != nullptr) {
    DT_RETURN_IF_ERROR(state_->Resume(*checkpoint, std::move(note)));
  } else if (state_->journal.is_wanted()) {  // Its steps need a checkpoint to be replayed from.
    state_->Save(state_->tracked.step(), SaveKind::kInStep);
  }
  if (state_->background != nullptr && SavesOnTheWay(state_->job.config())) {
    state_->background->Expect((bytes + TrackedBytes(state_->tracked.tensors())) /
                               static_cast<uint64_t>(state_->job.world_size()));
  }
  return absl::OkStatus();
}

checkpoint::SaveReport Checkpointer::State::Save(int64_t step, SaveKind kind) {
  const InnerPhase save(job.state().heartbeat.get(), "save");
  double seconds = 0;
  checkpoint::SaveReport report = [&] {
    const ScopedPhase phase("dtrain::checkpoint", seconds);
    return Write(step);
  }();
  Record(report, seconds, kind);
  return report;
}

checkpoint::SaveReport Checkpointer::State::Write(int64_t step) {
  if (background != nullptr && tracked.GathersWeights()) {
    // Within the memory that other saves have.
    return background->SaveAndWait(step, *writer, [this](EngineSnapshot snapshot) {
      return tracked.Take(std::move(snapshot), tiers->host());
    });
  }
  absl::StatusOr<EngineSnapshot> snapshot = tracked.Take({}, tiers->host());
  if (!snapshot.ok()) {  // The group is broken: nobody can save.
    return {.status = snapshot.status(), .id = {.step = step}};
  }
  return writer->Save(step, snapshot->source, exchange);
}

absl::Status Checkpointer::State::StartSave(int64_t step) {
  const InnerPhase save(job.state().heartbeat.get(), "save");
  DT_ASSIGN_OR_RETURN(const bool ready, background->Prepare());
  if (!ready) {
    if (!job.config().checkpoint_continuous()) {
      job.metrics().LogEvent(EventKind::kCheckpoint, step,
                             {{"skipped", true}, {"m", {{"ckpt/skipped", ++skipped_saves}}}});
    }
    return absl::OkStatus();
  }
  background->BeginBlocking();
  const ScopedPhase phase("dtrain::checkpoint", background->blocked_s());
  absl::StatusOr<EngineSnapshot> snapshot = tracked.Take(background->NewSnapshot(), tiers->host());
  if (!snapshot.ok()) {  // The ranks learn of it from each other when the save begins.
    const absl::Status failure = snapshot.status();
    if (tracked.GathersWeights()) {
      return failure;  // The others wait for this rank in their gathers: it cannot go on.
    }
    snapshot.emplace();
    snapshot->source.status = failure;
  }
  for (const EngineSnapshots& of_engine : tracked.Snapshots()) {
    background->Guard(of_engine.state());
  }
  started_step = step;
  RotateJournal();
  background->Start(step, *writer, *std::move(snapshot));
  return absl::OkStatus();
}

absl::Status Checkpointer::State::End(const std::optional<checkpoint::SaveReport>& ended) {
  if (!ended.has_value()) {
    return absl::OkStatus();
  }
  Record(*ended, background->blocked_s(), SaveKind::kBackground);
  return ended->outcome == checkpoint::SaveOutcome::kFenced ? Fenced(ended->status)
                                                            : absl::OkStatus();
}

absl::Status Checkpointer::State::EndBackground(bool wait) {
  if (background == nullptr) {
    return absl::OkStatus();
  }
  const InnerPhase save(wait ? job.state().heartbeat.get() : nullptr, "save");
  return End(wait ? background->Wait() : background->Take());
}

// A rank may not have heard how a save in the background ended.
absl::StatusOr<bool> Checkpointer::State::IsSaved(int64_t step) {
  const bool mine = saved_step == step;
  if (background == nullptr) {
    return mine;
  }
  DT_ASSIGN_OR_RETURN(const bool lacking, OnAnyRank(job.group(), !mine, "a step is not saved"));
  return !lacking;
}

void Checkpointer::State::RotateJournal() {
  if (journal.has_begun()) {
    journal.Rotate();
  } else {  // The program has restored nothing, or a fresh start has now saved its first step.
    journal.Begin(*storage, epoch, tracked.place(), {});
  }
}

// `seconds`: how long training stood still.
void Checkpointer::State::Record(const checkpoint::SaveReport& report, double seconds,
                                 SaveKind kind) {
  Json details = {{"m",
                   {{"ckpt/bytes", report.bytes},
                    {"ckpt/seconds", report.seconds},
                    {"time/checkpoint_s", seconds}}},
                  {"durable", report.durable()}};
  if (report.durable()) {
    saved_step = report.id.step;
    if (kind == SaveKind::kInStep) {
      RotateJournal();
    }
    journal.RemoveBefore(report.id);
    tiers->Copy(report.id);
    details["path"] = absl::StrFormat("%s", storage->DisplayName(report.id.DirectoryName()));
  } else {
    details["error"] = std::string(report.status.message());
    if (job.rank() == 0 && kind != SaveKind::kAtEnd &&
        report.outcome != checkpoint::SaveOutcome::kFenced) {
      const auto last = writer->last_durable();
      DT_LOG(Warning) << "checkpoint of step " << report.id.step
                      << " was not saved: " << report.status.message() << "; the last good one is "
                      << (last ? absl::StrCat("of step ", last->step) : "still to come");
    }
  }
  if (kind == SaveKind::kBackground) {
    details["background"] = true;
  }
  job.metrics().LogEvent(EventKind::kCheckpoint, report.id.step, details);
}

absl::Status Checkpointer::MaybeSave(int64_t step) {
  State& state = *state_;
  const bool stopping = state.job.stop_agreed();
  const bool due = IsDue(state.job.config(), step);
  DT_RETURN_IF_ERROR(state.tracked.Check());
  state.stops = stopping;
  if (stopping) {
    TellStopping(state.job, AgentMessage::kStepFinished, step);
  }
  DT_RETURN_IF_ERROR(state.EndBackground(stopping));
  state.journal.EndStep(state.tracked.states(), state.tracked.tensors());
  if ((!stopping && !due) || (state.saved_step == step && !stopping)) {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(state.PrepareSave());
  if (state.background != nullptr && !stopping) {
    return step == state.started_step ? absl::OkStatus() : state.StartSave(step);
  }
  absl::Status saved;
  DT_ASSIGN_OR_RETURN(const bool is_saved, state.IsSaved(step));
  if (!is_saved) {
    const checkpoint::SaveReport report =
        state.Save(step, stopping ? SaveKind::kAtEnd : SaveKind::kInStep);
    if (report.outcome == checkpoint::SaveOutcome::kFenced) {
      return Fenced(report.status);
    }
    saved = report.status;  // OK when it is durable.
  }
  if (!stopping) {
    return absl::OkStatus();
  }
  // Before the copy, for which the others need not wait.
  DT_ASSIGN_OR_RETURN(const std::string why, WhatStopped(state.job));
  saved.Update(state.tiers->Finish(/*stopping=*/true));
  state.job.metrics().Flush();
  state.job.state().saved_at_stop = saved.ok();
  if (saved.ok()) {
    TellStopping(state.job, AgentMessage::kStepSaved, step);
  }
  return Stopped(absl::StrFormat("stopped by %s after step %d", why, step), saved,
                 state.storage->DisplayName(""));
}

absl::Status Checkpointer::Finish() {
  State& state = *state_;
  DT_RETURN_IF_ERROR(state.tracked.Check());
  state.stops = state.job.stop_agreed();
  DT_RETURN_IF_ERROR(state.EndBackground(/*wait=*/true));
  state.journal.Finish();
  const int64_t step = state.tracked.step();
  DT_ASSIGN_OR_RETURN(const bool is_saved, state.IsSaved(step));
  if (!is_saved && step > 0) {
    DT_RETURN_IF_ERROR(state.PrepareSave());
    const checkpoint::SaveReport report = state.Save(step, SaveKind::kAtEnd);
    if (!report.durable()) {
      const bool is_fenced = report.outcome == checkpoint::SaveOutcome::kFenced;
      return Annotate(is_fenced ? Fenced(report.status) : report.status,
                      absl::StrFormat("the last step, %d, is not saved", step));
    }
  }
  state.journal.Finish();  // Removes on other hosts, which stay until their tiers have finished.
  const absl::Status copied = state.tiers->Finish(/*stopping=*/false);
  state.job.metrics().Flush();
  return copied;
}

}  // namespace dtrain
