// The first half of a step: its micro-batches, in Engine::Step or in a program's own loop. Each is
// loaded, goes forward and backward, eagerly or as a CUDA graph, and leaves its gradients with
// GradientSync, whose reductions begin in the last one. Private to runtime/engine; for the thread
// that trains.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtrain/engine.h"
#include "runtime/engine/device/graph_runner.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/engine/micro_batch_random.h"
#include "runtime/engine/record/forward_witness.h"
#include "runtime/offload/activation_store.h"
#include "runtime/ops/fp8_weight_codes.h"

namespace dtrain {

// A program's functions, as Engine::Step calls them.
struct StepCalls {
  absl::FunctionRef<absl::StatusOr<int64_t>()> load;  // The next batch; its samples, or 0.
  absl::FunctionRef<Loss()> forward;                  // Runs on what was loaded last.
  absl::FunctionRef<std::optional<GraphInputs>()> inputs;
  absl::FunctionRef<std::string()> source;  // Names what `load` reads.
};

class MicroBatches {
 public:
  // The parts that only this half of a step uses.
  struct Parts {
    std::shared_ptr<ActivationStore> activations;  // Null: what segments keep stays near.
    // FP8 codes that live from a step's begin to its update, and, where graphs read them, on. Null:
    // each micro-batch makes the codes that it wants.
    std::unique_ptr<ops::KeptWeightCodes> codes;
    std::unique_ptr<GraphRunner> graphs;  // Null: off, or the host.
  };

  // `watch_always`: every pass is watched for what an exception came from, not only the first.
  // REQUIRES: `engine` outlives this object, but for its strategy, which is gone before the graphs.
  MicroBatches(EngineParts& engine, Parts parts, bool watch_always);

  // Drops the gradients that other backwards left before the step began. Those that the step's own
  // closure leaves later count.
  void DropLeftGradients();
  // A step begins, if none is under way.
  void Begin();
  // All micro-batches of a step. False: a stop signal has ended the step between two of them.
  absl::StatusOr<bool> TakeAll(const StepCalls& calls);
  // One backward of a program's own loop. A failure has ended the step.
  absl::Status ProgramBackward(const Loss& loss, const BackwardOptions& options);
  // For such a loop: seeds the generators for the micro-batch that comes next.
  void SeedNextForward() { random_.SeedNextForward(); }

  // The step has ended well.
  void EndStep();
  // Buckets and sums are free for the next step.
  void Abandon();
  // This rank's step has failed before its update. The others may have its part of some buckets and
  // wait for the rest: they end too.
  absl::Status Fail(const absl::Status& failure);
  // Weights are about to change, or may have changed.
  void DropWeightCodes();

  // First error of what runs beside forward and backward: a gather that an operation waited for,
  // the tier of activations.
  absl::Status BackgroundStatus() const;
  absl::Status activation_status() const;
  // For evaluations.
  ForwardWitness& witness() { return witness_; }
  const MicroBatchRandom& random() const { return random_; }

 private:
  absl::Status Take(const StepCalls& calls, int64_t micro, BackwardOptions options);
  absl::StatusOr<int64_t> Load(const StepCalls& calls);
  absl::StatusOr<Loss> Forward(const StepCalls& calls);
  // False: the micro-batch is to be taken eagerly.
  absl::StatusOr<bool> TakeByGraph(const StepCalls& calls, const BackwardOptions& options);
  absl::Status Backward(const Loss& loss, const BackwardOptions& options);
  // FailedPrecondition where a step begins: the program has changed the model.
  absl::Status CheckModel() const;
  absl::Status PrepareLossScale(const Loss& loss);
  // Throws LibTorch's exceptions.
  absl::Status Differentiate(const Loss& loss, bool retain_graph);
  absl::Status EndOne(int64_t loss_count, const BackwardOptions& options);
  // Waiting for weights is no computing: moves its time from a phase to exposed communication.
  void MoveWaited(double& phase_s);
  // Queues a mark on a GPU. An error is returned by the next Backward, or voted when the step ends.
  void Mark(DevicePhases::Phase phase) { engine_.health.Break(engine_.strategy->Mark(phase)); }

  EngineParts& engine_;
  MicroBatchRandom random_;
  ForwardWitness witness_;  // Watches the loss functions that the engine calls.
  const Parts parts_;
};

}  // namespace dtrain
