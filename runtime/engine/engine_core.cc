#include "runtime/engine/engine_core.h"

#include <exception>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/engine/evaluation.h"
#include "runtime/engine/live_passes.h"
#include "runtime/engine/transaction.h"
#include "runtime/job/announce.h"
#include "runtime/job/exception_status.h"
#include "runtime/job/job_state.h"
#include "runtime/model/phase.h"

namespace dtrain {

EngineCore::EngineCore(std::unique_ptr<EngineParts> parts, MicroBatches::Parts micro_batches,
                       bool watch_always)
    : parts_(std::move(parts)),
      job_(parts_->job),
      state_(parts_->state),
      health_(parts_->health),
      step_(parts_->step),
      micro_batches_(*parts_, std::move(micro_batches), watch_always) {
  state_.last_step.settle = [this](bool may_be_unsettled) { return Settle(may_be_unsettled); };
}

// The strategy waits for the last launch of a graph, so it goes before the graphs.
EngineCore::~EngineCore() { parts_->strategy.reset(); }

EngineState& EngineCore::SettledState() {
  // The caller may restore weights, which changes no version counter of theirs.
  micro_batches_.DropWeightCodes();
  state_.last_step.status = parts_->strategy->SettleLastStep();
  state_.last_step.status.Update(health_.weights());
  return state_;
}

std::optional<UnsettledStep> EngineCore::Settle(bool may_be_unsettled) {
  if (may_be_unsettled && health_.weights().ok()) {
    if (std::optional<UnsettledStep> step = parts_->strategy->Unsettled(); step.has_value()) {
      return step;
    }
  }
  SettledState();
  return std::nullopt;
}

absl::Status EngineCore::CheckIdle() const {
  return with_parameters_ ? absl::FailedPreconditionError(
                                "an engine that runs a function of WithParameters cannot step, "
                                "evaluate or run another: return from the function first")
                          : health_.Usable();
}

absl::StatusOr<StepReport> EngineCore::Step(const StepCalls& calls, Tracked* data) {
  DT_RETURN_IF_ERROR(CheckIdle());
  DT_RETURN_IF_ERROR(CheckGroupEngines(job_.state()));
  micro_batches_.DropLeftGradients();
  micro_batches_.Begin();
  StepTransaction transaction(state_.flat->module_buffers(), data);
  step_.transaction = &transaction;
  const absl::Cleanup over = [this] { step_.transaction = nullptr; };
  const absl::StatusOr<bool> whole = micro_batches_.TakeAll(calls);
  if (whole.ok() && !*whole) {
    return LeaveStep();
  }
  auto report =
      whole.ok() ? Update() : absl::StatusOr<StepReport>(micro_batches_.Fail(whole.status()));
  if (!report.ok()) {
    DropAllGathered(state_).IgnoreError();  // The step's own error says more.
    DT_RETURN_IF_ERROR(transaction.Rollback());
  }
  return report;
}

absl::StatusOr<StepReport> EngineCore::LeaveStep() {
  micro_batches_.Abandon();
  DT_RETURN_IF_ERROR(DropAllGathered(state_));
  DT_RETURN_IF_ERROR(step_.transaction->Rollback());
  parts_->buffers->Remember();
  return StoppedStep(job_, state_);
}

absl::StatusOr<StepReport> EngineCore::Update() {
  if (health_.refuses()) {
    return health_.Usable();
  }
  if (!step_.reducing) {
    return absl::FailedPreconditionError(
        "Update without a Backward of the last micro-batch before it (last_micro_batch = true)");
  }
  job_.Beat("update", state_.progress.step);
  micro_batches_.DropWeightCodes();
  const int64_t step = state_.progress.step + 1;
  absl::StatusOr<StepReport> report = [this]() -> absl::StatusOr<StepReport> {
    try {
      return EndStep();
    } catch (const std::exception& error) {  // A program's optimizer threw, or memory ran out.
      const absl::Status thrown = FromException("in the update", error);
      health_.Tear(thrown);
      return thrown;
    }
  }();
  if (!report.ok()) {
    return FailUpdate(step, report.status());
  }
  micro_batches_.EndStep();
  return report;
}

absl::Status EngineCore::FailUpdate(int64_t step, absl::Status failure) {
  const bool all_failed = TakeMark(failure);
  failure = health_.Explained(failure, parts_->gradients->readiness());
  if (!all_failed) {
    health_.EndGroups(step, failure);
  }
  health_.Break(failure);
  health_.Refuse(failure);
  micro_batches_.Abandon();
  return failure;
}

KeptSteps EngineCore::kept_steps() {
  return {state_, *parts_->plan, *parts_->gradients, *parts_->strategy};
}

absl::StatusOr<StepReport> EngineCore::EndStep() {
  StepStrategy& strategy = *parts_->strategy;
  DT_RETURN_IF_ERROR(strategy.SettleLastStep());
  DT_RETURN_IF_ERROR(strategy.ReportLastStep());
  DT_ASSIGN_OR_RETURN(const StepVerdict verdict, AgreeOnEnd());
  parts_->looks.Take(verdict);
  if (state_.hooks.take_save_votes) {
    state_.hooks.take_save_votes(verdict.save);
  }
  DT_RETURN_IF_ERROR(parts_->plan->TakeUnused(verdict));
  // The reduced gradient of the step is complete, or queued, and no weight has changed.
  DT_RETURN_IF_ERROR(SettleBuffers(verdict));
  DT_RETURN_IF_ERROR(strategy.Prepare(verdict));
  kept_steps().Keep(verdict);
  if (state_.hooks.before_update) {
    DT_RETURN_IF_ERROR(state_.hooks.before_update(/*together=*/true));
  }
  if (absl::Status updated = strategy.Update(verdict, step_.report); !updated.ok()) {
    health_.Tear(updated);
    return updated;
  }
  kept_steps().Updated();
  if (step_.transaction != nullptr && strategy.skip_flag() != nullptr) {
    step_.transaction->RestoreBuffersWhere(*strategy.skip_flag());
    parts_->buffers->Remember();
  }
  if (verdict.stop_signal != 0) {
    job_.AgreeToStop(verdict.stop_signal);
  }
  StepReport finished = Finish(verdict);
  DT_RETURN_IF_ERROR(strategy.End(verdict, finished));
  DT_RETURN_IF_ERROR(parts_->gradients->AdoptReadinessOrder(job_.group()));
  parts_->recorder->MeasureGemms(job_.state().device->is_host() ? finished.seconds : 0);
  return finished;
}

absl::StatusOr<StepVerdict> EngineCore::AgreeOnEnd() {
  const ScopedPhase phase("dtrain::wait", step_.report.exposed_comm_s);
  // A gather that could not start leaves the ranks at different collectives.
  DT_RETURN_IF_ERROR(LiveStatus(state_));
  // The agreement tells the others of a failure of this rank alone, if this rank has taken part in
  // all reductions of the step. Where it has not, Fill fails, and the caller ends the groups.
  absl::Status failure = health_.failure();
  failure.Update(parts_->gradients->status());
  failure.Update(micro_batches_.activation_status());
  const absl::StatusOr<double> lr_factor = LrFactorAt(state_.options, state_.progress.updates);
  failure.Update(lr_factor.status());
  StepVote vote{.count = step_.count,
                .samples = step_.samples,
                .step = state_.progress.step,
                .epoch = job_.group().epoch(),
                .failed = failure.ok() ? 0 : 1,
                .lr_factor = lr_factor.value_or(1)};
  const absl::Status filled = parts_->strategy->Fill(vote);
  vote.stop_signal = job_.stop_signal();
  vote.unused_parameters = parts_->plan->NoteUsed(parts_->gradients->used());
  vote.buffers_changed = parts_->buffers->Changed() ? 1 : 0;
  vote.micro_batch_s = parts_->looks.MicroBatchSeconds(step_.micro_batches);
  vote.save = state_.hooks.save_vote ? state_.hooks.save_vote() : 0;
  const absl::StatusOr<StepVerdict> verdict =
      filled.ok() ? Agree(job_.group(), vote) : absl::StatusOr<StepVerdict>(filled);
  if (!failure.ok()) {
    return verdict.ok() ? OnAllRanks(failure) : failure;
  }
  if (verdict.ok() && verdict->failed) {
    return OnAllRanks(
        absl::AbortedError(absl::StrFormat("rank %d failed in step %d; see its message",
                                           verdict->failed_rank, state_.progress.step + 1)));
  }
  return verdict;
}

absl::Status EngineCore::SettleBuffers(const StepVerdict& verdict) {
  if (step_.transaction != nullptr && !verdict.updates()) {
    step_.transaction->RestoreBuffers();  // A bad batch must not stay in running statistics.
  } else if (verdict.buffers_changed) {
    const ScopedPhase phase("dtrain::wait", step_.report.exposed_comm_s);
    DT_RETURN_IF_ERROR(parts_->buffers->MakeOneSet());
  }
  parts_->buffers->Remember();
  return absl::OkStatus();
}

StepReport EngineCore::Finish(const StepVerdict& verdict) {
  ++state_.progress.step;
  StepReport& report = step_.report;
  report.step = state_.progress.step;
  report.tokens = verdict.samples;
  report.unit = state_.options.sample_unit;
  report.loss = verdict.loss();
  job_.metrics().SetStep(state_.progress.step);
  parts_->recorder->EndStep(step_);
  StepReport finished = report;
  micro_batches_.Abandon();
  if (Heartbeat* const heartbeat = job_.state().heartbeat.get(); heartbeat != nullptr) {
    heartbeat->EndStep(finished);
  }
  return finished;
}

absl::Status EngineCore::Replay(const StepEnd& end,
                                absl::FunctionRef<absl::Status(const GradientMemory&)> fill) {
  DT_RETURN_IF_ERROR(CheckIdle());
  const at::NoGradGuard no_grad;
  micro_batches_.DropWeightCodes();
  if (absl::Status updated = kept_steps().Update(end, step_.report, fill); !updated.ok()) {
    health_.Tear(updated);
    return updated;
  }
  ++state_.progress.step;
  micro_batches_.Abandon();
  return absl::OkStatus();
}

absl::StatusOr<double> EngineCore::Evaluate(const internal::EvaluationCalls& calls) {
  DT_RETURN_IF_ERROR(CheckIdle());
  return Evaluation(*parts_, micro_batches_, calls).Run();
}

absl::Status EngineCore::WithParameters(absl::FunctionRef<void()> function) {
  const at::NoGradGuard no_grad;
  DT_RETURN_IF_ERROR(CheckIdle());
  micro_batches_.DropWeightCodes();  // The function may write by any means.
  if (state_.hooks.before_update) {
    DT_RETURN_IF_ERROR(state_.hooks.before_update(/*together=*/false));
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
