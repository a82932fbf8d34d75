#include "runtime/engine/micro_batches.h"

#include <exception>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status.h"
#include "dtrain/batch_source.h"
#include "runtime/engine/live_passes.h"
#include "runtime/engine/loss_unit.h"
#include "runtime/job/announce.h"
#include "runtime/job/exception_status.h"
#include "runtime/job/job_state.h"
#include "runtime/job/stop_signal.h"
#include "runtime/memory/memory_in_use.h"
#include "runtime/model/cpu_rng.h"
#include "runtime/model/phase.h"

namespace dtrain {
namespace {

// Stays the error by which a loop knows the end of its data (IsEndOfData).
absl::Status NoBatchLeft(const absl::Status& end, int64_t step, const std::string& source) {
  return Annotate(
      end,
      absl::StrFormat("step %d needs a batch that the data source %s does not have; let its Next() "
                      "begin again, or set train_steps or train_epochs to what it holds",
                      step, source));
}

}  // namespace

MicroBatches::MicroBatches(EngineParts& engine, Parts parts, bool watch_always)
    : engine_(engine),
      random_(engine.job, engine.state.progress.step),
      witness_(engine.module),
      parts_(std::move(parts)) {
  if (watch_always) {
    witness_.WatchAlways();
  }
}

absl::Status MicroBatches::activation_status() const {
  return parts_.activations == nullptr ? absl::OkStatus() : parts_.activations->status();
}

absl::Status MicroBatches::BackgroundStatus() const {
  DT_RETURN_IF_ERROR(activation_status());
  return LiveStatus(engine_.state);
}

void MicroBatches::DropLeftGradients() {
  if (engine_.step.micro_batches == 0 && engine_.state.options.zero_grad) {
    engine_.state.flat->ClearGradients();
  }
}

void MicroBatches::Begin() {
  StepInProgress& step = engine_.step;
  if (step.micro_batches > 0 || step.start_nanos > 0) {
    return;
  }
  DeferStopSignals();
  step.start_nanos = Clock::Real().MonotonicNanos();
  engine_.looks.Begin();
  step.report = StepReport{};
  engine_.job.group().SetStep(engine_.state.progress.step + 1);
  SetStepOfLive(engine_.state, engine_.state.progress.step + 1);
  engine_.health.Break(engine_.strategy->Begin());
  if (parts_.codes != nullptr) {
    const bool lasting = parts_.graphs != nullptr && parts_.graphs->active();
    parts_.codes->Open(lasting ? ops::KeptWeightCodes::Lifetime::kLasting
                               : ops::KeptWeightCodes::Lifetime::kOpening);
  }
  TakeWaitedSeconds(engine_.state);  // The time of an evaluation or a save is no part of the step.
  engine_.recorder->BeginStep();
}

absl::StatusOr<bool> MicroBatches::TakeAll(const StepCalls& calls) {
  StopLooks& looks = engine_.looks;
  const int64_t accumulation = engine_.plan->engine().accumulation;
  for (int64_t micro = 0; micro < accumulation; ++micro) {
    DT_RETURN_IF_ERROR(Take(calls, micro, {.last_micro_batch = micro + 1 == accumulation}));
    if (looks.Due(micro + 1, accumulation)) {
      const ScopedPhase phase("dtrain::wait", engine_.step.report.exposed_comm_s);
      DT_ASSIGN_OR_RETURN(const bool stops, looks.Look(micro + 1));
      if (stops) {
        return false;
      }
    }
  }
  return true;
}

absl::Status MicroBatches::Take(const StepCalls& calls, int64_t micro, BackwardOptions options) {
  DT_ASSIGN_OR_RETURN(options.samples, Load(calls));
  engine_.recorder->NoteFirstForward();
  // Behind the data source, whose draws are the program's own.
  const ScopedSeed numbers(random_.SeedOf(MicroBatchOf::kTraining, micro));
  DT_ASSIGN_OR_RETURN(const bool taken, TakeByGraph(calls, options));
  if (taken) {
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const Loss loss, Forward(calls));
  MoveWaited(engine_.step.report.forward_s);
  DT_RETURN_IF_ERROR(BackgroundStatus());
  engine_.job.Beat("backward", engine_.state.progress.step);
  const absl::Status backward = Backward(loss, options);
  MoveWaited(engine_.step.report.backward_s);
  return backward;
}

absl::StatusOr<int64_t> MicroBatches::Load(const StepCalls& calls) {
  engine_.job.Beat("data", engine_.state.progress.step);
  const ScopedPhase phase("dtrain::data", engine_.step.report.data_s);
  try {
    absl::StatusOr<int64_t> loaded = calls.load();
    if (IsEndOfData(loaded.status())) {
      return NoBatchLeft(loaded.status(), engine_.state.progress.step + 1, calls.source());
    }
    return loaded;
  } catch (const std::exception& error) {
    return FromException(absl::StrCat("in the data source ", calls.source()).c_str(), error);
  }
}

absl::StatusOr<Loss> MicroBatches::Forward(const StepCalls& calls) {
  const Device& device = *engine_.job.state().device;
  const ScopedPhase phase("dtrain::forward", engine_.step.report.forward_s);
  try {
    const int64_t before = BytesInUse(device);
    Mark(&StepNumbers::forward_s);
    Loss loss = calls.forward();
    engine_.recorder->NoteActivations(engine_.step, BytesInUse(device) - before);
    return loss;
  } catch (const std::exception& error) {
    return FromException("in the loss function", error, witness_.Describe(error));
  }
}

absl::StatusOr<bool> MicroBatches::TakeByGraph(const StepCalls& calls,
                                               const BackwardOptions& options) {
  StepInProgress& step = engine_.step;
  try {
    engine_.job.Beat("forward", engine_.state.progress.step);
    witness_.Begin(ForwardWitness::Pass::kForward);
    if (parts_.graphs == nullptr) {
      return false;
    }
    DT_ASSIGN_OR_RETURN(
        const MicroStepGraph* const graph,
        parts_.graphs->Prepare(calls.forward, calls.inputs, [this](const Loss& loss) {
          DT_RETURN_IF_ERROR(CheckLoss(loss));
          return Differentiate(loss, /*retain_graph=*/false);
        }));
    if (graph == nullptr) {
      return false;
    }
    DT_RETURN_IF_ERROR(CheckModel());
    DT_RETURN_IF_ERROR(engine_.buffers->CheckInPlace());
    engine_.job.Beat("backward", engine_.state.progress.step);
    const ScopedPhase phase("dtrain::backward", step.report.backward_s);
    Mark(&StepNumbers::backward_s);  // Forward too: a graph is one operation.
    step.reducing = options.last_micro_batch;
    DT_RETURN_IF_ERROR(
        parts_.graphs->Launch(*graph, engine_.state.progress.step + 1, step.reducing));
    Mark(nullptr);
    engine_.recorder->NoteActivations(step, graph->activations);
    DT_RETURN_IF_ERROR(EndOne(graph->count, options));
    return true;
  } catch (const std::exception& error) {
    return FromException("in the loss function", error, witness_.Describe(error));
  }
}

absl::Status MicroBatches::CheckModel() const {
  return engine_.step.micro_batches > 0 ? absl::OkStatus() : engine_.watch.CheckUnchanged();
}

// fp16: the scale follows from how the step before ended, and the unit from the first loss.
absl::Status MicroBatches::PrepareLossScale(const Loss& loss) {
  if (engine_.job.config().precision().kind != PrecisionConfig::Kind::kFloat16) {
    return absl::OkStatus();
  }
  if (engine_.step.micro_batches == 0) {
    DT_RETURN_IF_ERROR(engine_.strategy->SettleLastStep());
  }
  return TakeLossScale(engine_.job, loss.count, engine_.state);
}

absl::Status MicroBatches::ProgramBackward(const Loss& loss, const BackwardOptions& options) {
  DT_RETURN_IF_ERROR(CheckGroupEngines(engine_.job.state()));
  DropLeftGradients();
  absl::Status status = Backward(loss, options);
  MoveWaited(engine_.step.report.backward_s);
  // Not while another loss of the same micro-batch may follow.
  const bool over = !options.retain_graph && random_.is_over();
  if (engine_.step.transaction == nullptr && (over || !status.ok())) {
    random_.SeedNextForward();
  }
  return status;
}

absl::Status MicroBatches::Backward(const Loss& loss, const BackwardOptions& options) {
  DT_RETURN_IF_ERROR(engine_.health.Usable());
  Begin();
  StepInProgress& step = engine_.step;
  if (step.micro_batches == 0) {
    step.report.exposed_comm_s += TakeWaitedSeconds(engine_.state);
  }
  DT_RETURN_IF_ERROR(CheckModel());  // First: a loss of frozen weights is no fault of the loss.
  DT_RETURN_IF_ERROR(CheckLoss(loss));
  if (step.reducing) {
    return absl::FailedPreconditionError(
        "Backward after the step's last micro-batch: call Update first, or pass last_micro_batch = "
        "false to all but the last");
  }
  DT_RETURN_IF_ERROR(PrepareLossScale(loss));
  step.reducing = options.last_micro_batch;
  engine_.gradients->BeginMicroBatch(engine_.state.progress.step + 1, step.reducing);
  const ScopedPhase phase("dtrain::backward", step.report.backward_s);
  Mark(&StepNumbers::backward_s);
  absl::Status status;
  witness_.Begin(ForwardWitness::Pass::kBackward);
  try {
    if (parts_.graphs != nullptr) {
      parts_.graphs->RefreshWeightCodes();
    }
    BeginBackwardPass(engine_.state);
    status = Differentiate(loss, options.retain_graph);
  } catch (const std::exception& error) {
    status = FromException("in backward", error, witness_.Describe(error));
  }
  if (status.ok()) {
    Mark(nullptr);
    status = EndOne(loss.count, options);
  }
  return status.ok() ? status : Fail(status);
}

absl::Status MicroBatches::Differentiate(const Loss& loss, bool retain_graph) {
  const double factor = LossFactor(engine_.job.config(), engine_.state);
  (factor == 1 ? loss.sum : loss.sum.to(at::kFloat) * factor)
      .backward(/*gradient=*/{}, retain_graph);
  return engine_.strategy->AddLoss(loss.sum);
}

absl::Status MicroBatches::EndOne(int64_t loss_count, const BackwardOptions& options) {
  StepInProgress& step = engine_.step;
  step.count += loss_count;
  step.samples += options.samples > 0 ? options.samples : loss_count;
  ++step.micro_batches;
  if (loss_count > 0 || options.samples > 0) {
    random_.Count();
  }
  DT_RETURN_IF_ERROR(BackgroundStatus());
  EndPass(engine_.state);
  DT_RETURN_IF_ERROR(BackgroundStatus());
  BeginPass(engine_.state, plan::GatherSchedule::Pass::kTraining);  // The next forward follows.
  return engine_.gradients->FinishBackward();
}

void MicroBatches::MoveWaited(double& phase_s) {
  const double seconds = TakeWaitedSeconds(engine_.state);
  phase_s -= seconds;
  engine_.step.report.exposed_comm_s += seconds;
}

void MicroBatches::EndStep() {
  if (parts_.graphs != nullptr) {
    parts_.graphs->EndStep();
  }
  witness_.End(ForwardWitness::Pass::kForward);
  witness_.End(ForwardWitness::Pass::kBackward);
  if (engine_.step.transaction == nullptr) {
    random_.SeedNextForward();
  }
}

void MicroBatches::Abandon() {
  StepInProgress& step = engine_.step;
  engine_.gradients->Release();
  DropWeightCodes();
  random_.Reset();
  step = StepInProgress{.report = std::move(step.report), .transaction = step.transaction};
}

absl::Status MicroBatches::Fail(const absl::Status& failure) {
  const absl::Status explained = engine_.health.Explained(failure, engine_.gradients->readiness());
  engine_.health.EndGroups(engine_.state.progress.step + 1, explained);
  engine_.health.Refuse(explained);
  Abandon();  // Nothing takes gradients from this step any more.
  return explained;
}

void MicroBatches::DropWeightCodes() {
  // Another engine may be in the midst of a step that reads them too.
  ops::KeptWeightCodes::NoteWrites();
  if (parts_.codes != nullptr) {
    parts_.codes->Close();
  }
}

}  // namespace dtrain
