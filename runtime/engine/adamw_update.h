// The optimizer's pass over the flat buffers.
#pragma once

#include <vector>

#include "base/parallel_for.h"
#include "dtrain/config.h"
#include "runtime/engine/engine_state.h"

namespace dtrain {

// A range of the flat buffers whose parameters have one weight decay.
struct DecayRange {
  int64_t begin = 0;
  int64_t end = 0;
  double weight_decay = 0;
};

// Neighbours with equal decay are one range. Pure.
std::vector<DecayRange> DecayRanges(const plan::ParamLayout& layout,
                                    const OptimizerConfig& optimizer);

// Updates weights and moments from the reduced gradient times `gradient_scale`. `update` counts
// from 1.
void AdamWUpdate(EngineState& state, const std::vector<DecayRange>& ranges,
                 const OptimizerConfig& optimizer, double learning_rate, double gradient_scale,
                 int64_t update, ParallelFor parallel_for);

}  // namespace dtrain
