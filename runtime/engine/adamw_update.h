// The optimizer's pass over the flat buffers.
#pragma once

#include <vector>

#include "base/parallel_for.h"
#include "dtrain/config.h"
#include "runtime/engine/engine_state.h"
#include "runtime/engine/gradient_sync.h"
#include "runtime/plan/lr_schedule.h"

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

// Elements with one weight decay: `elements` from `flat` on in the values, from `local` on in the
// moments of the rank that owns them.
struct UpdatePiece {
  int64_t flat = 0;
  int64_t local = 0;
  int64_t elements = 0;
  double weight_decay = 0;
};

// The pieces of one owned range. Pure.
std::vector<UpdatePiece> UpdatePieces(const std::vector<DecayRange>& ranges,
                                      const plan::OwnedRange& owned);

// Updates weights and moments of the pieces from the reduced gradient times `gradient_scale`: the
// values themselves in fp32, else the master and, rounded from it, the values.
// `update` counts from 1.
void AdamWUpdate(EngineState& state, const ReducedGradient& gradient,
                 const std::vector<UpdatePiece>& pieces, const OptimizerConfig& optimizer,
                 const plan::Betas& betas, double learning_rate, double gradient_scale,
                 int64_t update, ParallelFor parallel_for);

}  // namespace dtrain
