// The sequence of a step: the same on the host and on a GPU, whose differences are in a
// StepStrategy. EngineBuilder makes one. Private to runtime/engine.
//
//   Step ─► MicroBatches: for each  load ─► forward ─► Backward (reductions begin in the last)
//        └► Update: EndStep         Agree ─► buffers ─► StepStrategy::Update ─► report
//
// A failure before StepStrategy::Update leaves no trace in the weights; one within may leave
// weights of two steps. An engine whose Update failed takes no calls afterwards, nor does one of
// several ranks whose micro-batch failed.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtrain/engine.h"
#include "runtime/engine/agreement.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/engine/kept_steps.h"
#include "runtime/engine/micro_batches.h"

namespace dtrain {

class EngineCore {
 public:
  // `parts` are whole. The arguments are those of MicroBatches.
  EngineCore(std::unique_ptr<EngineParts> parts, MicroBatches::Parts micro_batches,
             bool watch_always);
  ~EngineCore();

  const EngineState& state() const { return state_; }
  // For a checkpointer: the state once it is known how the last step ended.
  EngineState& SettledState();
  // EngineState::settle.
  std::optional<UnsettledStep> Settle(bool may_be_unsettled);

  // `data` may be null: it is put back with all else when the step fails.
  absl::StatusOr<StepReport> Step(const StepCalls& calls, Tracked* data);
  // Its halves, for a program's own loop.
  absl::Status ProgramBackward(const Loss& loss, const BackwardOptions& options) {
    return micro_batches_.ProgramBackward(loss, options);
  }
  absl::StatusOr<StepReport> Update();
  void SeedNextForward() { micro_batches_.SeedNextForward(); }
  absl::StatusOr<double> Evaluate(const internal::EvaluationCalls& calls);
  absl::Status WithParameters(absl::FunctionRef<void()> function);
  // Collective. Takes a step again that ended so, by the gradient that `fill` brings: weights and
  // states are then as they were behind it. REQUIRES: it is the step after the state's, and
  // settled.
  absl::Status Replay(const StepEnd& end,
                      absl::FunctionRef<absl::Status(const GradientMemory&)> fill);

 private:
  // OK, or why no step, evaluation or function can run now.
  absl::Status CheckIdle() const;
  absl::StatusOr<StepReport> EndStep();
  absl::StatusOr<StepVerdict> AgreeOnEnd();
  KeptSteps kept_steps();
  // The module's buffers, before weights change: one set on all ranks, or, where the host knows
  // that the step is skipped, as they were before it.
  absl::Status SettleBuffers(const StepVerdict& verdict);
  StepReport Finish(const StepVerdict& verdict);
  // Ends the step that a stop signal has ended: all is as before it.
  absl::StatusOr<StepReport> LeaveStep();
  // Update of `step` has failed: the others hear of it, and the engine takes no calls any more.
  absl::Status FailUpdate(int64_t step, absl::Status failure);

  const std::unique_ptr<EngineParts> parts_;
  Job& job_;
  EngineState& state_;
  EngineHealth& health_;
  StepInProgress& step_;
  MicroBatches micro_batches_;
  bool with_parameters_ = false;  // A function of WithParameters runs.
};

}  // namespace dtrain
