#include "runtime/plan/optimizer/lr_schedule.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace dtrain::plan::lr_schedule_test {
namespace {

// The reference, written again from its description as the object that DeepSpeed runs: a scheduler
// that holds the current rate and is stepped after each optimizer step.
class SteppedScheduler {
 public:
  explicit SteppedScheduler(const SchedulerConfig& config) : config_(config) {
    warmup_steps_ = config.warmup_num_steps < 2 ? 2 : static_cast<int>(config.warmup_num_steps);
    inverse_log_warmup_ = 1.0 / std::log(warmup_steps_);
    switch (config.kind) {
      case SchedulerConfig::Kind::kConstant:
        lr_ = config.base_lr;
        break;
      case SchedulerConfig::Kind::kWarmup:
      case SchedulerConfig::Kind::kWarmupDecay:
        lr_ = config.warmup_min_lr;
        break;
      case SchedulerConfig::Kind::kWarmupCosine:
        lr_ = 0;
        break;
      case SchedulerConfig::Kind::kRangeTest:
        lr_ = config.range_min_lr;
        break;
      case SchedulerConfig::Kind::kOneCycle:
      case SchedulerConfig::Kind::kWarmupStableDecay:
        break;  // Tests of their own.
    }
  }
  double lr() const { return lr_; }
  void Step() {
    ++iteration_;
    const double n = iteration_;
    const double total = static_cast<double>(config_.total_num_steps);
    const double real = std::max(1.0, total - warmup_steps_);
    double gamma = 1;
    if (iteration_ < warmup_steps_) {
      gamma = config_.warmup_log ? inverse_log_warmup_ * std::log(n + 1) : n / warmup_steps_;
    } else if (config_.kind == SchedulerConfig::Kind::kWarmupDecay) {
      gamma = std::max(0.0, (total - n) / real);
    }
    switch (config_.kind) {
      case SchedulerConfig::Kind::kConstant:
        break;
      case SchedulerConfig::Kind::kWarmup:
      case SchedulerConfig::Kind::kWarmupDecay:
        lr_ = config_.warmup_min_lr + (config_.warmup_max_lr - config_.warmup_min_lr) * gamma;
        break;
      case SchedulerConfig::Kind::kWarmupCosine: {
        double ratio = config_.warmup_min_ratio + (1 - config_.warmup_min_ratio) * gamma;
        if (iteration_ >= warmup_steps_) {
          const double progress = std::min(1.0, (n - warmup_steps_ + 1) / real);
          ratio = config_.cos_min_ratio +
                  (1 - config_.cos_min_ratio) * (1 + std::cos(M_PI * progress)) / 2;
        }
        lr_ = std::max(0.0, ratio) * config_.base_lr;
        break;
      }
      case SchedulerConfig::Kind::kRangeTest: {
        double interval = (n + 1) / static_cast<double>(config_.range_step_size);
        if (config_.range_staircase) {
          interval = std::floor(interval);
        }
        lr_ = config_.range_min_lr * (1 + config_.range_step_rate * interval);
        break;
      }
      case SchedulerConfig::Kind::kOneCycle:
      case SchedulerConfig::Kind::kWarmupStableDecay:
        break;
    }
  }

 private:
  SchedulerConfig config_;
  int warmup_steps_ = 0;
  double inverse_log_warmup_ = 0;
  int iteration_ = -1;
  double lr_ = 0;
};

TEST(LrScheduleTest, EqualsTheSteppedSchedulerAtEveryStep) {
  int compared = 0;
  for (const auto kind : {SchedulerConfig::Kind::kConstant, SchedulerConfig::Kind::kWarmup,
                          SchedulerConfig::Kind::kWarmupDecay, SchedulerConfig::Kind::kWarmupCosine,
                          SchedulerConfig::Kind::kRangeTest}) {
    for (const int64_t warmup : {1, 2, 7, 50}) {
      for (const int64_t total : {1, 7, 40, 200}) {
        for (const bool logarithmic : {true, false}) {
          SchedulerConfig config;
          config.kind = kind;
          config.base_lr = 3e-4;
          config.warmup_min_lr = 1e-6;
          config.warmup_max_lr = 5e-4;
          config.warmup_min_ratio = 0.1;
          config.cos_min_ratio = 1e-4;
          config.warmup_num_steps = warmup;
          config.warmup_log = logarithmic;
          config.total_num_steps = total;
          config.range_min_lr = 1e-3;
          config.range_step_rate = 2;
          config.range_step_size = 10;
          config.range_staircase = logarithmic;
          SteppedScheduler reference(config);
          for (int64_t step = 0; step < 260; ++step, reference.Step()) {
            ASSERT_NEAR(LrAt(config, step), reference.lr(), 1e-15 + 1e-12 * reference.lr())
                << "kind " << static_cast<int>(kind) << " warmup " << warmup << " total " << total
                << " log " << logarithmic << " step " << step;
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_EQ(compared, 5 * 4 * 4 * 2 * 260);
}

// Values worked out by hand, so that the two implementations above cannot share a mistake.
TEST(LrScheduleTest, HasTheValuesWorkedOutByHand) {
  SchedulerConfig warmup;
  warmup.kind = SchedulerConfig::Kind::kWarmup;
  warmup.warmup_min_lr = 0;
  warmup.warmup_max_lr = 1;
  warmup.warmup_num_steps = 8;
  warmup.warmup_log = false;
  EXPECT_EQ(LrAt(warmup, 0), 0);      // Before the scheduler's first step.
  EXPECT_EQ(LrAt(warmup, 1), 0);      // n = 0.
  EXPECT_EQ(LrAt(warmup, 5), 0.5);    // n = 4 of 8.
  EXPECT_EQ(LrAt(warmup, 8), 0.875);  // n = 7.
  EXPECT_EQ(LrAt(warmup, 9), 1);      // n = 8: over.
  EXPECT_EQ(LrAt(warmup, 100000), 1);
  warmup.warmup_log = true;
  EXPECT_NEAR(LrAt(warmup, 4), 2.0 / 3, 1e-15);  // ln(4) / ln(8).

  SchedulerConfig cosine;
  cosine.kind = SchedulerConfig::Kind::kWarmupCosine;
  cosine.base_lr = 2;
  cosine.warmup_num_steps = 2;
  cosine.warmup_log = false;
  cosine.total_num_steps = 10;
  cosine.cos_min_ratio = 0;
  EXPECT_EQ(LrAt(cosine, 0), 0);
  EXPECT_NEAR(LrAt(cosine, 6), 1, 1e-15);   // n = 5: p = 4 / 8, cos = 0.
  EXPECT_NEAR(LrAt(cosine, 10), 0, 1e-15);  // n = 9: p = 1.

  SchedulerConfig decay = warmup;
  decay.kind = SchedulerConfig::Kind::kWarmupDecay;
  decay.total_num_steps = 16;
  EXPECT_EQ(LrAt(decay, 13), 0.5);  // n = 12: (16 - 12) / 8.
  EXPECT_EQ(LrAt(decay, 17), 0);    // n = 16: the end.
  EXPECT_EQ(LrAt(decay, 50), 0);
}

// The values of DeepSpeed 0.19.8's OneCycle: the rate and beta1 of optimizer steps 0, 1, ...
TEST(LrScheduleTest, OneCycleHasDeepSpeedsValues) {
  SchedulerConfig schedule;
  schedule.kind = SchedulerConfig::Kind::kOneCycle;
  schedule.cycle = {.min_lr = 0.1,
                    .max_lr = 1,
                    .decay_lr_rate = 0.5,
                    .first_steps = 4,
                    .second_steps = 6,
                    .decay_steps = 2,
                    .min_momentum = 0.8,
                    .max_momentum = 0.9};
  const auto expect = [&](const std::vector<double>& rates, const std::vector<double>& betas) {
    for (size_t step = 0; step < rates.size(); ++step) {
      const auto at = static_cast<int64_t>(step);
      EXPECT_NEAR(LrAt(schedule, at), rates[step], 1e-6) << "step " << step;
      const Betas now = BetasAt(schedule, {.first = 0.5, .second = 0.999}, at);
      EXPECT_NEAR(now.first, betas[step], 1e-6) << "step " << step;
      EXPECT_EQ(now.second, 0.99);
    }
  };
  expect({0.1, 0.325, 0.55, 0.775, 1, 0.85, 0.7, 0.55, 0.4, 0.25, 0.1, 0.08, 0.066667, 0.057143},
         {0.8, 0.875, 0.85, 0.825, 0.8, 0.816667, 0.833333, 0.85, 0.866667, 0.883333, 0.9, 0.9, 0.9,
          0.9});
  schedule.cycle.first_steps = 5;
  schedule.cycle.second_steps = 5;
  schedule.cycle.first_stairs = 2;
  schedule.cycle.second_stairs = 3;
  schedule.cycle.decay_steps = 0;
  expect({0.1, 0.1, 0.1, 0.55, 0.55, 1, 0.7, 0.4, 0.4, 0.1, 0.1, 0.1, 0.1},
         {0.8, 0.9, 0.9, 0.85, 0.85, 0.8, 0.833333, 0.866667, 0.866667, 0.9, 0.9, 0.9, 0.9});
  schedule.cycle.momentum = false;
  EXPECT_EQ(BetasAt(schedule, {.first = 0.5, .second = 0.999}, 3).first, 0.5);
}

TEST(LrScheduleTest, WarmupStableDecayHasItsThreeParts) {
  SchedulerConfig schedule;
  schedule.kind = SchedulerConfig::Kind::kWarmupStableDecay;
  schedule.base_lr = 2;
  schedule.warmup_num_steps = 4;
  schedule.total_num_steps = 20;
  schedule.decay_num_steps = 4;
  EXPECT_EQ(LrAt(schedule, 0), 0.5);
  EXPECT_EQ(LrAt(schedule, 3), 2);
  EXPECT_EQ(LrAt(schedule, 15), 2);
  EXPECT_EQ(LrAt(schedule, 16), 1) << "1 - sqrt(1 / 4)";
  EXPECT_EQ(LrAt(schedule, 19), 0);
  EXPECT_EQ(LrAt(schedule, 1000), 0);
  schedule.decay_sqrt = false;
  schedule.decay_min_ratio = 0.1;
  EXPECT_NEAR(LrAt(schedule, 17), 2 * (0.1 + 0.9 * 0.5), 1e-15);
}

TEST(LrScheduleTest, WarmupStableDecayMayBeginAboveZeroOrWithoutAWarmup) {
  SchedulerConfig schedule;
  schedule.kind = SchedulerConfig::Kind::kWarmupStableDecay;
  schedule.base_lr = 2;
  schedule.warmup_num_steps = 4;
  schedule.warmup_min_ratio = 0.5;
  schedule.total_num_steps = 10;
  schedule.decay_num_steps = 1;
  EXPECT_EQ(LrAt(schedule, 0), 1.25) << "2 * (0.5 + 0.5 / 4)";
  EXPECT_EQ(LrAt(schedule, 3), 2);
  EXPECT_EQ(LrAt(schedule, 8), 2);
  EXPECT_EQ(LrAt(schedule, 9), 0);
  schedule.warmup_num_steps = 0;
  EXPECT_EQ(LrAt(schedule, 0), 2);
  schedule.decay_num_steps = 0;  // Nothing decays before the run is over.
  EXPECT_EQ(LrAt(schedule, 9), 2);
}

TEST(LrScheduleTest, TheRateOfAGroupFollowsEverySchedule) {
  using Kind = SchedulerConfig::Kind;
  SchedulerConfig schedule;
  schedule.base_lr = 0.1;
  schedule.warmup_num_steps = 4;
  schedule.total_num_steps = 20;
  schedule.decay_num_steps = 4;
  schedule.warmup_max_lr = 0.1;
  schedule.range_min_lr = 0.1;
  schedule.range_step_rate = 2;
  schedule.range_step_size = 10;
  schedule.cycle = {.min_lr = 0.01, .max_lr = 0.1, .first_steps = 4, .second_steps = 4};
  for (const Kind kind : {Kind::kConstant, Kind::kWarmup, Kind::kWarmupDecay, Kind::kWarmupCosine,
                          Kind::kWarmupStableDecay, Kind::kRangeTest, Kind::kOneCycle}) {
    schedule.kind = kind;
    for (const int64_t step : {0, 1, 3, 9, 17}) {
      EXPECT_EQ(GroupLrAt(schedule, 0.1, 0.1, step), LrAt(schedule, step));
      EXPECT_DOUBLE_EQ(GroupLrAt(schedule, 0.1, 0.05, step), LrAt(schedule, step) / 2)
          << "kind " << static_cast<int>(kind) << " step " << step;
    }
  }
}

}  // namespace
}  // namespace dtrain::plan::lr_schedule_test
