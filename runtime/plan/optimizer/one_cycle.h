// The OneCycle schedule (Smith 2018, arXiv 1803.09820) with DeepSpeed's parameters: the learning
// rate rises to its maximum and falls back while beta1 does the opposite; then the rate decays.
// Pure.
#pragma once

#include <cstdint>

#include "dtrain/config.h"

namespace dtrain::plan {

// The position in the cycle after `done` steps of the scheduler: 0 at its ends, 1 at its peak. A
// stair count rounds it to stairs. REQUIRES: done < cycle steps.
double CyclePosition(const OneCycleConfig& cycle, int64_t done);

// The rate and beta1 at step n of the scheduler, counted from 0. Before its first step n is -1.
double CycleLr(const OneCycleConfig& cycle, int64_t n);
double CycleMomentum(const OneCycleConfig& cycle, int64_t n);

}  // namespace dtrain::plan
