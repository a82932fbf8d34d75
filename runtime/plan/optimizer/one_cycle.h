// The OneCycle schedule (Smith 2018, arXiv 1803.09820) with DeepSpeed's parameters: the learning
// rate rises to its maximum and falls back while beta1 does the opposite; then the rate decays.
// Pure.
#pragma once

#include <cstdint>

#include "dtrain/config.h"

namespace dtrain::plan {

// Where the cycle stands after `done` steps of the scheduler: 0 at its ends, 1 at its peak, in
// steps where a stair count is given. REQUIRES: done < cycle steps.
double CyclePosition(const OneCycleConfig& cycle, int64_t done);

// At the scheduler's n, from 0; before it, -1.
double CycleLr(const OneCycleConfig& cycle, int64_t n);
double CycleMomentum(const OneCycleConfig& cycle, int64_t n);

}  // namespace dtrain::plan
