// The learning rate of each optimizer step. Pure; thread-safe.
//
// Formulas are DeepSpeed's (deepspeed/runtime/lr_schedules.py, docs/CONFIG.md repeats them). The
// scheduler steps after the optimizer: optimizer step 0 uses the value set before the schedule
// starts, optimizer step s >= 1 uses the schedule at n = s - 1.
#pragma once

#include <cstdint>

#include "dtrain/config.h"

namespace dtrain::plan {

// The learning rate that optimizer step `step` (from 0) uses. REQUIRES: step >= 0.
double LrAt(const SchedulerConfig& schedule, int64_t step);

// The same of a parameter whose settings give `lr` where the optimizer's own is `base_lr`: in
// proportion where the schedule scales that, else times lr / base_lr. REQUIRES: base_lr > 0, or
// lr == base_lr.
double GroupLrAt(const SchedulerConfig& schedule, double base_lr, double lr, int64_t step);

// The optimizer's betas at that step: OneCycle moves them.
struct Betas {
  double first = 0;
  double second = 0;
};
Betas BetasAt(const SchedulerConfig& schedule, const Betas& optimizer, int64_t step);

}  // namespace dtrain::plan
