// The default CPU generator, saved and put back.
#pragma once

#include <optional>

#include "ATen/core/MT19937RNGEngine.h"
#include "ATen/core/Tensor.h"

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

// State of the default CPU generator: [5056] uint8.
at::Tensor CpuRngState();
void SetCpuRngState(const at::Tensor& state);

}  // namespace dtrain
