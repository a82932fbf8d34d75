// The engine's parts and the sequence of a step over them: the same on the host and on a GPU, whose
// differences are in a StepStrategy. EngineBuilder makes one. Private to runtime/engine.
//
//   Step ─► TakeMicroBatches: for each  load ─► forward ─► Backward (reductions begin in the last)
//        └► Update: EndStep             Agree ─► buffers ─► StepStrategy::Update ─► report
//
// A failure before StepStrategy::Update leaves no trace in the weights; one within may leave
// weights of two steps. An engine whose Update failed takes no calls afterwards, nor does one of
// several ranks whose micro-batch failed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtrain/engine.h"
#include "runtime/engine/agreement.h"
#include "runtime/engine/device/graph_runner.h"
#include "runtime/engine/engine_health.h"
#include "runtime/engine/kept_steps.h"
#include "runtime/engine/micro_batch_random.h"
#include "runtime/engine/model_watch.h"
#include "runtime/engine/record/forward_witness.h"
#include "runtime/engine/record/step_recorder.h"
#include "runtime/engine/step_in_progress.h"
#include "runtime/engine/step_strategy.h"
#include "runtime/engine/stop_looks.h"
#include "runtime/engine/update_plan.h"
#include "runtime/gradients/gradient_sync.h"
#include "runtime/model/model_memory.h"
#include "runtime/model/module_buffers.h"
#include "runtime/offload/activation_store.h"
#include "runtime/ops/fp8_weight_codes.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

// A program's functions, as Engine::Step calls them.
struct StepCalls {
  absl::FunctionRef<absl::StatusOr<int64_t>()> load;  // The next batch; its samples, or 0.
  absl::FunctionRef<Loss()> forward;                  // Runs on what was loaded last.
  absl::FunctionRef<std::optional<GraphInputs>()> inputs;
};

class EngineCore {
 public:
  // EngineBuilder makes the other parts.
  EngineCore(Job& job, torch::nn::Module& module);

  const EngineState& state() const { return state_; }
  // For a checkpointer: the state once it is known how the last step ended.
  EngineState& SettledState();
  // OK, or why no step, evaluation or function can run now.
  absl::Status CheckIdle() const;

  // `data` may be null: it is put back with all else when the step fails.
  absl::StatusOr<StepReport> Step(const StepCalls& calls, Tracked* data);
  // Its halves, for a program's own loop.
  absl::Status ProgramBackward(const Loss& loss, const BackwardOptions& options);
  absl::StatusOr<StepReport> Update();
  void SeedNextForward() { random_.SeedNextForward(); }
  absl::Status WithParameters(absl::FunctionRef<void()> function);
  // Collective. Takes a step again that ended so, by the gradient that `fill` brings: weights and
  // states are then as they were behind it. REQUIRES: a CPU rank; it is the step after the state's.
  absl::Status Replay(const StepEnd& end,
                      absl::FunctionRef<absl::Status(const GradientMemory&)> fill);

 private:
  friend class EngineBuilder;
  friend class Evaluation;

  Job& job() const { return job_; }
  const Device& device() const;

  // The micro-batches of a step.
  void Begin();
  // Drops the gradients that other backwards left before the step began. Those that the step's own
  // closure leaves later count.
  void DropLeftGradients();
  // False: a stop signal has ended the step between two of them.
  absl::StatusOr<bool> TakeMicroBatches(const StepCalls& calls);
  absl::Status TakeMicroBatch(const StepCalls& calls, int64_t micro, BackwardOptions options);
  absl::StatusOr<int64_t> Load(const StepCalls& calls);
  absl::StatusOr<Loss> Forward(const StepCalls& calls);
  // False: the micro-batch is to be taken eagerly.
  absl::StatusOr<bool> TakeByGraph(const StepCalls& calls, const BackwardOptions& options);
  absl::Status Backward(const Loss& loss, const BackwardOptions& options);
  // FailedPrecondition where a step begins: the program has changed the model.
  absl::Status CheckModel() const {
    return step_.micro_batches > 0 ? absl::OkStatus() : watch_.CheckUnchanged();
  }
  absl::Status PrepareLossScale(const Loss& loss);
  // Throws LibTorch's exceptions.
  absl::Status Differentiate(const Loss& loss, bool retain_graph);
  absl::Status EndMicroBatch(int64_t loss_count, const BackwardOptions& options);
  // Waiting for weights is no computing: moves its time from a phase to exposed communication.
  void MoveWaited(double& phase_s);

  // The end of a step.
  absl::StatusOr<StepReport> EndStep();
  absl::StatusOr<StepVerdict> AgreeOnEnd();
  KeptSteps kept_steps() { return {state_, *plan_, *gradients_, *strategy_}; }
  // The module's buffers, before weights change: one set on all ranks, or, where the host knows
  // that the step is skipped, as they were before it.
  absl::Status SettleBuffers(const StepVerdict& verdict);
  StepReport Finish(const StepVerdict& verdict);
  // Buckets and sums are free for the next step.
  void Abandon();
  // Ends the step that a stop signal has ended: all is as before it.
  absl::StatusOr<StepReport> LeaveStep();

  // Failures.
  // First error of what runs beside forward and backward: a gather that an operation waited for,
  // the tier of activations.
  absl::Status BackgroundStatus() const;
  // With where ranks of stage 3 have parted, if that is what failed. Before the group ends.
  absl::Status Explained(const absl::Status& failure);
  // This rank's step has failed before its update. The others may have its part of some buckets and
  // wait for the rest: they end too.
  absl::Status FailStep(const absl::Status& failure);
  void DropWeightCodes();
  // Queues a mark on a GPU. An error is returned by the next Backward, or voted when the step ends.
  void Mark(DevicePhases::Phase phase) { health_.Break(strategy_->Mark(phase)); }

  Job& job_;
  torch::nn::Module& module_;
  EngineState state_;
  std::shared_ptr<const ModelMemory> memory_;  // Where the model's tensors were.
  ModelWatch watch_;
  EngineHealth health_;
  StopLooks looks_;
  MicroBatchRandom random_;
  ForwardWitness witness_;  // Watches the loss functions that the engine calls.
  std::shared_ptr<ActivationStore> activations_;  // Null: what segments keep stays near.
  std::unique_ptr<GradientSync> gradients_;
  std::unique_ptr<UpdatePlan> plan_;
  // FP8 codes that live from a step's begin to its update, and, where graphs read them, on. Null:
  // each micro-batch makes the codes that it wants.
  std::unique_ptr<ops::KeptWeightCodes> codes_;
  std::unique_ptr<ModuleBuffers> buffers_;
  std::unique_ptr<GraphRunner> graphs_;     // Null: off, or the host. Outlives the strategy, which
  std::unique_ptr<StepStrategy> strategy_;  // waits for the last launch.
  std::unique_ptr<StepRecorder> recorder_;
  StepInProgress step_;
  bool with_parameters_ = false;  // A function of WithParameters runs.
  bool explained_ = false;        // Explained has asked the others, of this failure.
};

}  // namespace dtrain
