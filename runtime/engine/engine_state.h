// What an engine trains: weights, moments, step. Read and restored by the checkpointer.
#pragma once

#include <cstdint>
#include <memory>

#include "ATen/core/Tensor.h"
#include "dtrain/engine.h"
#include "runtime/engine/flat_parameters.h"

namespace dtrain {

class EngineState {
 public:
  std::unique_ptr<FlatParameters> flat;
  at::Tensor exp_avg;     // First moment, [flat->layout().total_elements()] fp32.
  at::Tensor exp_avg_sq;  // Second moment, the same shape.
  int64_t step = 0;       // Steps finished.
  int64_t updates =
      0;  // Steps that changed weights: skipped ones do not count for bias correction.
  int64_t skipped = 0;
  EngineOptions options;
};

}  // namespace dtrain
