// The update of a GPU as a CUDA graph (`cuda_graphs`): captured once, launched from then on. Where
// it cannot be captured, updates are queued eagerly with the same numbers, and one line of the log
// says why. Not thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "runtime/device/device.h"

namespace dtrain {

class UpdateGraph {
 public:
  // `why_not`: why no graph can hold this engine's updates; "": one can. REQUIRES: `device` is a
  // GPU and outlives this object.
  UpdateGraph(const Device& device, const std::string& why_not);

  // Queues what `queue` queues, which is the same in every step.
  absl::Status Run(absl::FunctionRef<absl::Status()> queue);
  // A step has ended well. The first ones run eagerly (StepGraphs::kWarmUpSteps).
  void EndStep() { ++steps_; }

 private:
  const Device& device_;
  bool refused_;
  int steps_ = 0;
  std::unique_ptr<DeviceGraph> graph_;  // Null: not captured.
};

}  // namespace dtrain
