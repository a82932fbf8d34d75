// This rank's memory by the parts of a training that take it.
#pragma once

#include <cstdint>

#include "dtrain/metrics.h"
#include "runtime/gradients/gradient_sync.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

// `activations`: bytes that the step's forward left allocated, which the caller measures.
MemoryReport ReportMemory(const EngineState& state, const GradientSync& gradients,
                          int64_t activations);

}  // namespace dtrain
