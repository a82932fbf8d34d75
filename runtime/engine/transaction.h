// What a step's forward may change, saved at its start and put back when the step fails.
#pragma once

#include <optional>
#include <vector>

#include "ATen/core/MT19937RNGEngine.h"
#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "base/json.h"
#include "dtrain/tracked.h"
#include "runtime/engine/flat_parameters.h"

namespace dtrain {

// The default CPU generator as plain values: a step saves it in a fraction of the time that a state
// tensor takes.
class CpuRngSnapshot {
 public:
  // Saves.
  CpuRngSnapshot();
  void Restore() const;

 private:
  std::optional<at::mt19937> engine_;  // Always set; made of a default it would be seeded first.
  // The second half of a pair of normal samples that was not drawn yet.
  std::optional<float> next_float_normal_;
  std::optional<double> next_double_normal_;
};

// RNG of the CPU generator, module buffers (running statistics), the data position. Small: copied.
class StepTransaction {
 public:
  // Saves. `data` may be null. REQUIRES: both outlive this object.
  StepTransaction(const std::vector<NamedTensor>& module_buffers, Tracked* data);
  // Puts everything back; without it the step's changes stay.
  absl::Status Rollback();
  // Puts module buffers back alone: for a step that was skipped, whose data is spent.
  void RestoreBuffers();

 private:
  const std::vector<NamedTensor>& module_buffers_;
  Tracked* data_;
  Json data_state_;
  const CpuRngSnapshot rng_;
  std::vector<at::Tensor> buffer_copies_;
};

// State of the default CPU generator: [5056] uint8.
at::Tensor CpuRngState();
void SetCpuRngState(const at::Tensor& state);

}  // namespace dtrain
