#include "runtime/engine/engine_core.h"

#include <exception>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/call.h"
#include "runtime/engine/kept_steps.h"
#include "runtime/engine/live_passes.h"
#include "runtime/engine/loss_unit.h"
#include "runtime/engine/rank_difference.h"
#include "runtime/engine/transaction.h"
#include "runtime/job/announce.h"
#include "runtime/job/exception_status.h"
#include "runtime/job/job_state.h"
#include "runtime/job/stop_signal.h"
#include "runtime/memory/memory_in_use.h"
#include "runtime/model/cpu_rng.h"
#include "runtime/model/phase.h"

namespace dtrain {

EngineCore::EngineCore(Job& job, torch::nn::Module& module)
    : job_(job),
      module_(module),
      watch_(module, state_),
      health_(job, state_),
      looks_(job, state_),
      random_(job, state_.step),
      witness_(module) {}

const Device& EngineCore::device() const { return *job_.state().device; }

EngineState& EngineCore::SettledState() {
  DropWeightCodes();  // The caller may restore weights, which changes no version counter of theirs.
  state_.settled = strategy_->SettleLastStep();
  state_.settled.Update(health_.weights());
  return state_;
}

absl::Status EngineCore::CheckIdle() const {
  return with_parameters_ ? absl::FailedPreconditionError(
                                "an engine that runs a function of WithParameters cannot step, "
                                "evaluate or run another: return from the function first")
                          : health_.Usable();
}

absl::Status EngineCore::BackgroundStatus() const {
  if (activations_ != nullptr) {
    DT_RETURN_IF_ERROR(activations_->status());
  }
  return LiveStatus(state_);
}

// The micro-batches of a step.

void EngineCore::Begin() {
  if (step_.micro_batches > 0 || step_.start_nanos > 0) {
    return;
  }
  DeferStopSignals();
  step_.start_nanos = Clock::Real().MonotonicNanos();
  looks_.Begin();
  step_.report = StepReport{};
  job_.group().SetStep(state_.step + 1);
  SetStepOfLive(state_, state_.step + 1);
  health_.Break(strategy_->Begin());
  if (codes_ != nullptr) {
    const bool lasting = graphs_ != nullptr && graphs_->active();
    codes_->Open(lasting ? ops::KeptWeightCodes::Lifetime::kLasting
                         : ops::KeptWeightCodes::Lifetime::kOpening);
  }
  TakeWaitedSeconds(state_);  // The time of an evaluation or a save is no part of the step.
  recorder_->BeginStep();
}

void EngineCore::DropLeftGradients() {
  if (step_.micro_batches == 0 && state_.options.zero_grad) {
    state_.flat->ClearGradients();
  }
}

absl::StatusOr<StepReport> EngineCore::Step(const StepCalls& calls, Tracked* data) {
  DT_RETURN_IF_ERROR(CheckIdle());
  DT_RETURN_IF_ERROR(CheckGroupEngines(job_.state()));
  DropLeftGradients();
  Begin();
  StepTransaction transaction(state_.flat->module_buffers(), data);
  step_.transaction = &transaction;
  const absl::Cleanup over = [this] { step_.transaction = nullptr; };
  const absl::StatusOr<bool> whole = TakeMicroBatches(calls);
  if (whole.ok() && !*whole) {
    return LeaveStep();
  }
  auto report = whole.ok() ? Update() : absl::StatusOr<StepReport>(FailStep(whole.status()));
  if (!report.ok()) {
    DropAllGathered(state_).IgnoreError();  // The step's own error says more.
    DT_RETURN_IF_ERROR(transaction.Rollback());
  }
  return report;
}

absl::StatusOr<bool> EngineCore::TakeMicroBatches(const StepCalls& calls) {
  const int64_t accumulation = job_.config().gradient_accumulation_steps();
  for (int64_t micro = 0; micro < accumulation; ++micro) {
    DT_RETURN_IF_ERROR(
        TakeMicroBatch(calls, micro, {.last_micro_batch = micro + 1 == accumulation}));
    if (looks_.Due(micro + 1, accumulation)) {
      const ScopedPhase phase("dtrain::wait", step_.report.exposed_comm_s);
      DT_ASSIGN_OR_RETURN(const bool stops, looks_.Look(micro + 1));
      if (stops) {
        return false;
      }
    }
  }
  return true;
}

absl::StatusOr<StepReport> EngineCore::LeaveStep() {
  Abandon();
  DT_RETURN_IF_ERROR(DropAllGathered(state_));
  DT_RETURN_IF_ERROR(step_.transaction->Rollback());
  buffers_->Remember();
  return StoppedStep(job_, state_);
}

absl::Status EngineCore::TakeMicroBatch(const StepCalls& calls, int64_t micro,
                                        BackwardOptions options) {
  DT_ASSIGN_OR_RETURN(options.samples, Load(calls));
  recorder_->NoteFirstForward();
  // Behind the data source, whose draws are the program's own.
  const ScopedSeed numbers(random_.SeedOf(MicroBatchOf::kTraining, micro));
  DT_ASSIGN_OR_RETURN(const bool taken, TakeByGraph(calls, options));
  if (taken) {
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const Loss loss, Forward(calls));
  MoveWaited(step_.report.forward_s);
  DT_RETURN_IF_ERROR(BackgroundStatus());
  job_.Beat("backward", state_.step);
  const absl::Status backward = Backward(loss, options);
  MoveWaited(step_.report.backward_s);
  return backward;
}

absl::StatusOr<int64_t> EngineCore::Load(const StepCalls& calls) {
  job_.Beat("data", state_.step);
  const ScopedPhase phase("dtrain::data", step_.report.data_s);
  try {
    return calls.load();
  } catch (const std::exception& error) {
    return FromException("in the data source", error);
  }
}

absl::StatusOr<Loss> EngineCore::Forward(const StepCalls& calls) {
  const ScopedPhase phase("dtrain::forward", step_.report.forward_s);
  try {
    const int64_t before = BytesInUse(device());
    Mark(&StepNumbers::forward_s);
    Loss loss = calls.forward();
    recorder_->NoteActivations(step_, BytesInUse(device()) - before);
    return loss;
  } catch (const std::exception& error) {
    return FromException("in the loss function", error, witness_.Describe(error));
  }
}

absl::StatusOr<bool> EngineCore::TakeByGraph(const StepCalls& calls,
                                             const BackwardOptions& options) {
  try {
    job_.Beat("forward", state_.step);
    witness_.Begin(ForwardWitness::Pass::kForward);
    if (graphs_ == nullptr) {
      return false;
    }
    DT_ASSIGN_OR_RETURN(const MicroStepGraph* const graph,
                        graphs_->Prepare(calls.forward, calls.inputs, [this](const Loss& loss) {
                          DT_RETURN_IF_ERROR(CheckLoss(loss));
                          return Differentiate(loss, /*retain_graph=*/false);
                        }));
    if (graph == nullptr) {
      return false;
    }
    DT_RETURN_IF_ERROR(CheckModel());
    DT_RETURN_IF_ERROR(buffers_->CheckInPlace());
    job_.Beat("backward", state_.step);
    const ScopedPhase phase("dtrain::backward", step_.report.backward_s);
    Mark(&StepNumbers::backward_s);  // Forward too: a graph is one operation.
    step_.reducing = options.last_micro_batch;
    DT_RETURN_IF_ERROR(graphs_->Launch(*graph, state_.step + 1, step_.reducing));
    Mark(nullptr);
    recorder_->NoteActivations(step_, graph->activations);
    DT_RETURN_IF_ERROR(EndMicroBatch(graph->count, options));
    return true;
  } catch (const std::exception& error) {
    return FromException("in the loss function", error, witness_.Describe(error));
  }
}

// fp16: the scale follows from how the step before ended, and the unit from the first loss.
absl::Status EngineCore::PrepareLossScale(const Loss& loss) {
  if (job_.config().precision().kind != PrecisionConfig::Kind::kFloat16) {
    return absl::OkStatus();
  }
  if (step_.micro_batches == 0) {
    DT_RETURN_IF_ERROR(strategy_->SettleLastStep());
  }
  return TakeLossScale(job_, loss.count, state_);
}

absl::Status EngineCore::ProgramBackward(const Loss& loss, const BackwardOptions& options) {
  DT_RETURN_IF_ERROR(CheckGroupEngines(job_.state()));
  DropLeftGradients();
  absl::Status status = Backward(loss, options);
  MoveWaited(step_.report.backward_s);
  // Not while another loss of the same micro-batch may follow.
  const bool over = !options.retain_graph && random_.is_over();
  if (step_.transaction == nullptr && (over || !status.ok())) {
    random_.SeedNextForward();
  }
  return status;
}

absl::Status EngineCore::Backward(const Loss& loss, const BackwardOptions& options) {
  DT_RETURN_IF_ERROR(health_.Usable());
  Begin();
  if (step_.micro_batches == 0) {
    step_.report.exposed_comm_s += TakeWaitedSeconds(state_);
  }
  DT_RETURN_IF_ERROR(CheckModel());  // First: a loss of frozen weights is no fault of the loss.
  DT_RETURN_IF_ERROR(CheckLoss(loss));
  if (step_.reducing) {
    return absl::FailedPreconditionError(
        "Backward after the step's last micro-batch: call Update first, or pass last_micro_batch = "
        "false to all but the last");
  }
  DT_RETURN_IF_ERROR(PrepareLossScale(loss));
  step_.reducing = options.last_micro_batch;
  gradients_->BeginMicroBatch(state_.step + 1, step_.reducing);
  const ScopedPhase phase("dtrain::backward", step_.report.backward_s);
  Mark(&StepNumbers::backward_s);
  absl::Status status;
  witness_.Begin(ForwardWitness::Pass::kBackward);
  try {
    if (graphs_ != nullptr) {
      graphs_->RefreshWeightCodes();
    }
    BeginBackwardPass(state_);
    status = Differentiate(loss, options.retain_graph);
  } catch (const std::exception& error) {
    status = FromException("in backward", error, witness_.Describe(error));
  }
  if (status.ok()) {
    Mark(nullptr);
    status = EndMicroBatch(loss.count, options);
  }
  if (!status.ok()) {
    status = FailStep(status);
  }
  return status;
}

absl::Status EngineCore::Differentiate(const Loss& loss, bool retain_graph) {
  const double factor = LossFactor(job_.config(), state_);
  (factor == 1 ? loss.sum : loss.sum.to(at::kFloat) * factor)
      .backward(/*gradient=*/{}, retain_graph);
  return strategy_->AddLoss(loss.sum);
}

absl::Status EngineCore::EndMicroBatch(int64_t loss_count, const BackwardOptions& options) {
  step_.count += loss_count;
  step_.samples += options.samples > 0 ? options.samples : loss_count;
  ++step_.micro_batches;
  if (loss_count > 0 || options.samples > 0) {
    random_.Count();
  }
  DT_RETURN_IF_ERROR(BackgroundStatus());
  EndPass(state_);
  DT_RETURN_IF_ERROR(BackgroundStatus());
  BeginPass(state_, plan::GatherSchedule::Pass::kTraining);  // The next forward follows.
  return gradients_->FinishBackward();
}

void EngineCore::MoveWaited(double& phase_s) {
  const double seconds = TakeWaitedSeconds(state_);
  phase_s -= seconds;
  step_.report.exposed_comm_s += seconds;
}

// The end of a step.
absl::StatusOr<StepReport> EngineCore::Update() {
  if (health_.refuses()) {
    return health_.Usable();
  }
  if (!step_.reducing) {
    return absl::FailedPreconditionError(
        "Update without a Backward of the last micro-batch before it (last_micro_batch = true)");
  }
  job_.Beat("update", state_.step);
  DropWeightCodes();
  const int64_t step = state_.step + 1;
  absl::StatusOr<StepReport> report = [this]() -> absl::StatusOr<StepReport> {
    try {
      return EndStep();
    } catch (const std::exception& error) {  // A program's optimizer threw, or memory ran out.
      const absl::Status thrown = FromException("in the update", error);
      health_.Tear(thrown);
      return thrown;
    }
  }();
  if (report.ok()) {
    witness_.End(ForwardWitness::Pass::kForward);
    witness_.End(ForwardWitness::Pass::kBackward);
    if (step_.transaction == nullptr) {
      random_.SeedNextForward();
    }
    return report;
  }
  absl::Status failure = report.status();
  const bool all_failed = TakeMark(failure);
  failure = Explained(failure);
  if (!all_failed) {
    health_.EndGroups(step, failure);
  }
  health_.Break(failure);
  health_.Refuse(failure);
  Abandon();
  return failure;
}

absl::StatusOr<StepReport> EngineCore::EndStep() {
  DT_RETURN_IF_ERROR(strategy_->SettleLastStep());
  DT_RETURN_IF_ERROR(strategy_->ReportLastStep());
  DT_ASSIGN_OR_RETURN(const StepVerdict verdict, AgreeOnEnd());
  looks_.Take(verdict);
  DT_RETURN_IF_ERROR(plan_->TakeUnused(verdict));
  // The reduced gradient of the step is complete, or queued, and no weight has changed.
  DT_RETURN_IF_ERROR(SettleBuffers(verdict));
  DT_RETURN_IF_ERROR(strategy_->Prepare(verdict));
  kept_steps().Keep(verdict);
  if (state_.before_update) {
    DT_RETURN_IF_ERROR(state_.before_update(/*together=*/true));
  }
  if (absl::Status updated = strategy_->Update(verdict, step_.report); !updated.ok()) {
    health_.Tear(updated);
    return updated;
  }
  kept_steps().Updated();
  if (step_.transaction != nullptr && strategy_->skip_flag() != nullptr) {
    step_.transaction->RestoreBuffersWhere(*strategy_->skip_flag());
    buffers_->Remember();
  }
  if (verdict.stop_signal != 0) {
    job_.AgreeToStop(verdict.stop_signal);
  }
  StepReport finished = Finish(verdict);
  DT_RETURN_IF_ERROR(strategy_->End(verdict, finished));
  DT_RETURN_IF_ERROR(gradients_->AdoptReadinessOrder(job_.group()));
  if (graphs_ != nullptr) {
    graphs_->EndStep();
  }
  recorder_->MeasureGemms(device().is_host() ? finished.seconds : 0);
  return finished;
}

absl::StatusOr<StepVerdict> EngineCore::AgreeOnEnd() {
  const ScopedPhase phase("dtrain::wait", step_.report.exposed_comm_s);
  // A gather that could not start leaves the ranks at different collectives.
  DT_RETURN_IF_ERROR(LiveStatus(state_));
  // The agreement tells the others of a failure of this rank alone, if this rank has taken part in
  // all reductions of the step. Where it has not, Fill fails, and the caller ends the groups.
  absl::Status failure = health_.failure();
  failure.Update(gradients_->status());
  if (activations_ != nullptr) {
    failure.Update(activations_->status());
  }
  StepVote vote{.count = step_.count,
                .samples = step_.samples,
                .step = state_.step,
                .epoch = job_.group().epoch(),
                .failed = failure.ok() ? 0 : 1};
  const absl::Status filled = strategy_->Fill(vote);
  vote.stop_signal = job_.stop_signal();
  vote.unused_parameters = plan_->NoteUsed(gradients_->used());
  vote.buffers_changed = buffers_->Changed() ? 1 : 0;
  vote.micro_batch_s = looks_.MicroBatchSeconds(step_.micro_batches);
  const absl::StatusOr<StepVerdict> verdict =
      filled.ok() ? Agree(job_.group(), vote) : absl::StatusOr<StepVerdict>(filled);
  if (!failure.ok()) {
    return verdict.ok() ? OnAllRanks(failure) : failure;
  }
  if (verdict.ok() && verdict->failed) {
    return OnAllRanks(absl::AbortedError(absl::StrFormat(
        "rank %d failed in step %d; see its message", verdict->failed_rank, state_.step + 1)));
  }
  return verdict;
}

absl::Status EngineCore::SettleBuffers(const StepVerdict& verdict) {
  if (step_.transaction != nullptr && !verdict.updates()) {
    step_.transaction->RestoreBuffers();  // A bad batch must not stay in running statistics.
  } else if (verdict.buffers_changed) {
    const ScopedPhase phase("dtrain::wait", step_.report.exposed_comm_s);
    DT_RETURN_IF_ERROR(buffers_->MakeOneSet());
  }
  buffers_->Remember();
  return absl::OkStatus();
}

StepReport EngineCore::Finish(const StepVerdict& verdict) {
  ++state_.step;
  StepReport& report = step_.report;
  report.step = state_.step;
  report.tokens = verdict.samples;
  report.unit = state_.options.sample_unit;
  report.loss = verdict.loss();
  job_.metrics().SetStep(state_.step);
  recorder_->EndStep(step_);
  StepReport finished = report;
  Abandon();
  return finished;
}

void EngineCore::Abandon() {
  gradients_->Release();
  DropWeightCodes();
  random_.Reset();
  step_ = StepInProgress{.report = std::move(step_.report), .transaction = step_.transaction};
}

// Failures.
void EngineCore::DropWeightCodes() {
  // Another engine may be in the midst of a step that reads them too.
  ops::KeptWeightCodes::NoteWrites();
  if (codes_ != nullptr) {
    codes_->Close();
  }
}

absl::Status EngineCore::FailStep(const absl::Status& failure) {
  const absl::Status explained = Explained(failure);
  health_.EndGroups(state_.step + 1, explained);
  health_.Refuse(explained);
  Abandon();  // Nothing takes gradients from this step any more.
  return explained;
}

absl::Status EngineCore::Explained(const absl::Status& failure) {
  if (state_.live == nullptr || job_.state().store == nullptr ||
      !comm::AreRanksDifferent(failure) || std::exchange(explained_, true)) {
    return failure;
  }
  const RankTrace mine{.reads = state_.live->reads(),
                       .frozen_reads = state_.frozen == nullptr ? std::vector<int64_t>{}
                                                                : state_.frozen->live->reads(),
                       .gradients = gradients_->readiness()};
  const std::string prefix =
      absl::StrFormat("ranks-differ/%d/%d", job_.group().epoch(), state_.step);
  return NameDifference(failure, state_, mine,
                        {*job_.state().store, prefix, job_.rank(), job_.world_size()},
                        job_.config().gather_limits().live_max);
}

absl::Status EngineCore::Replay(const StepEnd& end,
                                absl::FunctionRef<absl::Status(const GradientMemory&)> fill) {
  DT_RETURN_IF_ERROR(CheckIdle());
  const at::NoGradGuard no_grad;
  DropWeightCodes();
  if (absl::Status updated = kept_steps().Update(end, step_.report, fill); !updated.ok()) {
    health_.Tear(updated);
    return updated;
  }
  ++state_.step;
  Abandon();
  return absl::OkStatus();
}

absl::Status EngineCore::WithParameters(absl::FunctionRef<void()> function) {
  const at::NoGradGuard no_grad;
  DT_RETURN_IF_ERROR(CheckIdle());
  DropWeightCodes();  // The function may write by any means.
  if (state_.before_update) {
    DT_RETURN_IF_ERROR(state_.before_update(/*together=*/false));
  }
  with_parameters_ = true;
  const absl::Cleanup over = [this] { with_parameters_ = false; };
  try {
    return WithWholeWeights(state_, function);
  } catch (const std::exception& error) {
    return FromException("in WithParameters", error);
  }
}

}  // namespace dtrain
