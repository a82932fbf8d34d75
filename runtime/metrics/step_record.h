// A StepReport as a metrics line (version 1). Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dtrain/metrics.h"

namespace dtrain {

struct StepRecordContext {
  double mean_step_s = 0;  // Smoothed, for the ETA.
  int64_t total_steps = 0;
};

// The named values: everything for rank 0, timings only for the others.
std::vector<std::pair<std::string, double>> StepMetrics(const StepReport& report,
                                                        const StepRecordContext& context,
                                                        bool everything);

}  // namespace dtrain
