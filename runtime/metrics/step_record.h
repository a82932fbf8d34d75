// A StepReport as a metrics line (version 1). Pure.
#pragma once

#include "base/json.h"
#include "dtrain/metrics.h"

namespace dtrain {

struct StepRecordContext {
  double mean_step_s = 0;  // Smoothed, for the ETA.
  int64_t total_steps = 0;
};

// The "m" object: everything for rank 0, timings only for the others.
Json StepMetrics(const StepReport& report, const StepRecordContext& context, bool everything);

}  // namespace dtrain
