// Numbers of the step under way.
#pragma once

#include <cstdint>

#include "dtrain/metrics.h"
#include "runtime/engine/transaction.h"

namespace dtrain {

struct StepInProgress {
  int64_t start_nanos = 0;  // 0: no step is under way.
  StepReport report;
  int64_t micro_batches = 0;
  int64_t count = 0;        // Samples that the losses count.
  int64_t samples = 0;      // Samples for rates.
  int64_t activations = 0;  // Bytes that a forward left, at most.
  bool reducing = false;    // Its last micro-batch has been through backward.
  // Null: the program calls Step's halves.
  StepTransaction* transaction = nullptr;
};

}  // namespace dtrain
