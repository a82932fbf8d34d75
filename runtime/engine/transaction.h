// Saves at a step's start all that its forward may change, and puts it back when the step fails.
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "base/json.h"
#include "dtrain/tracked.h"
#include "runtime/model/cpu_rng.h"
#include "runtime/model/flat_parameters.h"

namespace dtrain {

// State of the default generators, module buffers (running statistics), the data position. Small:
// copied.
class StepTransaction {
 public:
  // Saves. `data` may be null. REQUIRES: both outlive this object.
  StepTransaction(const std::vector<NamedTensor>& module_buffers, Tracked* data);
  // Puts everything back; without it the step's changes stay.
  absl::Status Rollback();
  // Puts module buffers back alone: for a step that was skipped, whose data is spent.
  void RestoreBuffers();
  // The same on a device, whose `flag` [1] says there whether it was skipped (not 0): never waits.
  void RestoreBuffersWhere(const at::Tensor& flag);

 private:
  const std::vector<NamedTensor>& module_buffers_;
  Tracked* data_;
  Json data_state_;
  const CpuRngSnapshot rng_;
  std::vector<at::Tensor> buffer_copies_;
};

}  // namespace dtrain
