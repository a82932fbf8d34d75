// Micro-batches of an engine on a GPU as CUDA graphs (`cuda_graphs`). A micro-batch that
// cannot be captured is queued eagerly, with the same numbers, and one line says why
// (step_graphs.h). Not thread-safe.
#pragma once

#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtrain/graph_inputs.h"
#include "dtrain/job.h"
#include "dtrain/loss.h"
#include "runtime/engine/device/step_graphs.h"
#include "runtime/gradients/device_gradients.h"
#include "runtime/model/module_buffers.h"
#include "runtime/ops/fp8_weight_codes.h"

namespace dtrain {

class GraphRunner {
 public:
  // Null: off, or a host, which says so. `gradients` is null where they are not accumulated whole;
  // `codes` may be. REQUIRES: all outlive this object.
  static std::unique_ptr<GraphRunner> For(Job& job, DeviceGradients* gradients,
                                          ModuleBuffers& buffers, ops::KeptWeightCodes* codes);

  // Whether micro-batches are, or may become, graphs.
  bool active() const { return graphs_.active(); }
  // A step has ended well.
  void EndStep() { graphs_.EndStep(); }

  // The graph of the batch, which now holds the batch; it is captured where it is wanted for the
  // first time. Null: the micro-batch is taken eagerly. `differentiate` runs backward of a loss.
  absl::StatusOr<MicroStepGraph*> Prepare(
      absl::FunctionRef<Loss()> forward,
      absl::FunctionRef<std::optional<GraphInputs>()> inputs_of_batch,
      absl::FunctionRef<absl::Status(const Loss&)> differentiate);
  // Queues forward and backward of a micro-batch of `step`, the last one of it or not.
  absl::Status Launch(const MicroStepGraph& graph, int64_t step, bool last);

  // Before what reads FP8 codes of weights where they lie: makes them anew, once a step.
  void RefreshWeightCodes();

 private:
  GraphRunner(const Device& device, DeviceGradients* gradients, ModuleBuffers& buffers,
              ops::KeptWeightCodes* codes)
      : device_(device), gradients_(gradients), buffers_(buffers), codes_(codes), graphs_(device) {}
  absl::Status Capture(absl::FunctionRef<Loss()> forward,
                       absl::FunctionRef<absl::Status(const Loss&)> differentiate,
                       MicroStepGraph& graph);
  absl::Status Record(absl::FunctionRef<Loss()> forward,
                      absl::FunctionRef<absl::Status(const Loss&)> differentiate,
                      MicroStepGraph& graph);

  const Device& device_;
  DeviceGradients* const gradients_;
  ModuleBuffers& buffers_;
  ops::KeptWeightCodes* const codes_;
  StepGraphs graphs_;
};

}  // namespace dtrain
