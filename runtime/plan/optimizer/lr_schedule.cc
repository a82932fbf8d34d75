#include "runtime/plan/optimizer/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "runtime/plan/optimizer/one_cycle.h"

namespace dtrain::plan {
namespace {

// DeepSpeed never warms up in fewer than two steps: ln(1) would divide by zero.
int64_t WarmupSteps(const SchedulerConfig& schedule) {
  return std::max<int64_t>(2, schedule.warmup_num_steps);
}

// ln(n + 1) / ln(N), or n / N. REQUIRES: n < N.
double WarmupGamma(const SchedulerConfig& schedule, int64_t n) {
  const auto steps = static_cast<double>(WarmupSteps(schedule));
  const auto done = static_cast<double>(n);
  return schedule.warmup_log ? std::log(done + 1) / std::log(steps) : done / steps;
}

double Between(const SchedulerConfig& schedule, double gamma) {
  return schedule.warmup_min_lr + gamma * (schedule.warmup_max_lr - schedule.warmup_min_lr);
}

double DecayGamma(const SchedulerConfig& schedule, int64_t n) {
  const int64_t warmup = WarmupSteps(schedule);
  const auto left = static_cast<double>(schedule.total_num_steps - n);
  const auto span = static_cast<double>(std::max<int64_t>(1, schedule.total_num_steps - warmup));
  return std::max(0.0, left / span);
}

double CosineRatio(const SchedulerConfig& schedule, int64_t n) {
  const int64_t warmup = WarmupSteps(schedule);
  if (n < warmup) {
    return schedule.warmup_min_ratio + WarmupGamma(schedule, n) * (1 - schedule.warmup_min_ratio);
  }
  const auto span = static_cast<double>(std::max<int64_t>(1, schedule.total_num_steps - warmup));
  const double progress = std::min(1.0, static_cast<double>(n - warmup + 1) / span);
  const double cosine = (1 + std::cos(std::numbers::pi * progress)) / 2;
  return schedule.cos_min_ratio + (1 - schedule.cos_min_ratio) * cosine;
}

// Warmup-stable-decay: linear warm-up, the optimizer's lr, then a decay that ends with the run;
// "sqrt" is 1 - sqrt(p) (Haegele et al. 2024, arXiv 2405.18392).
double StableDecayRatio(const SchedulerConfig& schedule, int64_t step) {
  if (step < schedule.warmup_num_steps) {
    const double done =
        static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_num_steps);
    return schedule.warmup_min_ratio + done * (1 - schedule.warmup_min_ratio);
  }
  const int64_t begin = schedule.total_num_steps - schedule.decay_num_steps;
  const double progress =
      std::clamp(static_cast<double>(step - begin + 1) /
                     static_cast<double>(std::max<int64_t>(1, schedule.decay_num_steps)),
                 0.0, 1.0);
  const double left = 1 - (schedule.decay_sqrt ? std::sqrt(progress) : progress);
  return schedule.decay_min_ratio + left * (1 - schedule.decay_min_ratio);
}

double RangeTestLr(const SchedulerConfig& schedule, int64_t n) {
  double interval = static_cast<double>(n + 1) / static_cast<double>(schedule.range_step_size);
  interval = schedule.range_staircase ? std::floor(interval) : interval;
  return schedule.range_min_lr * (1 + schedule.range_step_rate * interval);
}

}  // namespace

double LrAt(const SchedulerConfig& schedule, int64_t step) {
  DT_CHECK_GE(step, 0);
  const int64_t n = step - 1;  // Negative: the value set before the schedule starts.
  switch (schedule.kind) {
    case SchedulerConfig::Kind::kConstant:
      return schedule.base_lr;
    case SchedulerConfig::Kind::kWarmup:
      return n < 0                       ? schedule.warmup_min_lr
             : n < WarmupSteps(schedule) ? Between(schedule, WarmupGamma(schedule, n))
                                         : schedule.warmup_max_lr;
    case SchedulerConfig::Kind::kWarmupDecay:
      return n < 0 ? schedule.warmup_min_lr
                   : Between(schedule, n < WarmupSteps(schedule) ? WarmupGamma(schedule, n)
                                                                 : DecayGamma(schedule, n));
    case SchedulerConfig::Kind::kWarmupCosine:
      return n < 0 ? 0.0 : schedule.base_lr * CosineRatio(schedule, n);
    case SchedulerConfig::Kind::kWarmupStableDecay:
      return schedule.base_lr * StableDecayRatio(schedule, step);
    case SchedulerConfig::Kind::kRangeTest:
      return n < 0 ? schedule.range_min_lr : RangeTestLr(schedule, n);
    case SchedulerConfig::Kind::kOneCycle:
      return CycleLr(schedule.cycle, n);
  }
  return schedule.base_lr;
}

double GroupLrAt(const SchedulerConfig& schedule, double base_lr, double lr, int64_t step) {
  using Kind = SchedulerConfig::Kind;
  if (lr == base_lr) {
    return LrAt(schedule, step);
  }
  const bool scales = schedule.kind == Kind::kConstant || schedule.kind == Kind::kWarmupCosine ||
                      schedule.kind == Kind::kWarmupStableDecay;
  if (!scales) {
    DT_CHECK(base_lr > 0) << " a group's lr " << lr << " beside 0";
    return LrAt(schedule, step) * (lr / base_lr);
  }
  SchedulerConfig of_group = schedule;
  of_group.base_lr = lr;
  return LrAt(of_group, step);
}

Betas BetasAt(const SchedulerConfig& schedule, const Betas& optimizer, int64_t step) {
  constexpr double kCycleBeta2 = 0.99;  // DeepSpeed's, whatever the optimizer says.
  return schedule.kind == SchedulerConfig::Kind::kOneCycle && schedule.cycle.momentum
             ? Betas{CycleMomentum(schedule.cycle, step - 1), kCycleBeta2}
             : optimizer;
}

}  // namespace dtrain::plan
