// The divisor of "GEMM fraction": the best of measurements that take a bounded share of a run.
#include "runtime/engine/record/gemm_probe.h"

#include <gtest/gtest.h>

#include <deque>
#include <utility>
#include <vector>

namespace dtrain::gemm_probe_test {
namespace {

// A machine whose products have given rates, of which the last stays.
struct Machine {
  std::deque<double> rates;
  double overhead_s = 0;
  int firsts = 0;
  std::vector<int64_t> repeats = {};  // Their sizes.
  double spent_s = 0;                 // In repeats.

  double Next() {
    const double rate = rates.front();
    if (rates.size() > 1) {
      rates.pop_front();
    }
    return rate;
  }
  GemmTiming Timing(int64_t size) {
    GemmTiming timing{.flops_per_s = Next(), .size = size};
    const auto n = static_cast<double>(size);
    timing.product_seconds = 2 * n * n * n / timing.flops_per_s;
    timing.repeat_seconds = 2 * timing.product_seconds + overhead_s;
    return timing;
  }
  GemmProbe Probe(int64_t first_size, bool repeats_it = true) {
    GemmProbe::Measures measures;
    measures.first = [this, first_size] {
      ++firsts;
      return Timing(first_size);
    };
    if (repeats_it) {
      measures.repeat = [this](int64_t size) {
        repeats.push_back(size);
        const GemmTiming timing = Timing(size);
        spent_s += timing.repeat_seconds;
        return timing;
      };
    }
    return GemmProbe(std::move(measures));
  }
};

void Train(GemmProbe& probe, int steps, double seconds) {
  for (int i = 0; i < steps; ++i) {
    probe.AfterStep(seconds);
  }
}

TEST(GemmProbe, IsMeasuredAfterTheSecondStepAndNotBefore) {
  Machine machine{.rates = {50e9}};
  GemmProbe probe = machine.Probe(512);
  probe.AfterStep(100);
  EXPECT_EQ(probe.rate(), 0);
  EXPECT_EQ(machine.firsts, 0);
  probe.AfterStep(100);
  EXPECT_EQ(probe.rate(), 50e9);
  EXPECT_EQ(machine.firsts, 1);
  EXPECT_TRUE(machine.repeats.empty());
}

TEST(GemmProbe, ADisturbedMeasurementIsMendedByALaterOne) {
  Machine machine{.rates = {4e9, 3e9, 50e9, 20e9}};
  GemmProbe probe = machine.Probe(512);
  Train(probe, 2, 1);
  EXPECT_EQ(probe.rate(), 4e9);
  Train(probe, 100000, 1);
  EXPECT_EQ(machine.firsts, 1);
  EXPECT_GT(machine.repeats.size(), 2u);
  EXPECT_EQ(probe.rate(), 50e9) << "what is disturbed later takes nothing back";
}

TEST(GemmProbe, RepeatsTakeLessThanAThousandthOfTheTime) {
  for (const double step_s : {0.001, 0.25, 30.0}) {
    for (const double rate : {0.05e9, 5e9, 80e9}) {  // The first: 2 bytes without instructions.
      Machine machine{.rates = {rate}, .overhead_s = 0.002};
      GemmProbe probe = machine.Probe(256);
      Train(probe, 2, step_s);
      const int steps = static_cast<int>(10000 / step_s);
      Train(probe, steps, step_s);
      EXPECT_GT(machine.repeats.size(), 1u) << step_s << " s, " << rate;
      EXPECT_LE(machine.spent_s, 0.001 * step_s * steps) << step_s << " s, " << rate;
    }
  }
}

// The first one stops at small matrices where a busy machine makes them slow; their rate is lower.
TEST(GemmProbe, GrowsToTheLargestMatricesThatAreShort) {
  Machine machine{.rates = {1e9, 50e9}};
  GemmProbe probe = machine.Probe(256);
  Train(probe, 100000, 1);
  EXPECT_EQ(machine.repeats.front(), 256);
  EXPECT_EQ(machine.repeats.back(), 512) << "1024 would take 43 ms";
  Machine fast{.rates = {5000e9}};
  GemmProbe of_fast = fast.Probe(256);
  Train(of_fast, 100000, 1);
  EXPECT_EQ(fast.repeats.back(), 1024);
}

TEST(GemmProbe, WithoutRepeatsTheFirstStands) {
  Machine machine{.rates = {4e9, 50e9}};
  GemmProbe probe = machine.Probe(8192, /*repeats_it=*/false);
  Train(probe, 100000, 1);
  EXPECT_EQ(probe.rate(), 4e9);
}

TEST(GemmProbe, TheHostsMeasurementsFollowFromEachOther) {
  const GemmTiming first = MeasureGemmRate(Device(), at::kFloat);
  EXPECT_GE(first.size, 256);
  EXPECT_LE(first.size, 1024);
  const GemmTiming again = RepeatGemmRate(at::kFloat, first.size);
  EXPECT_EQ(again.size, first.size);
  const auto n = static_cast<double>(first.size);
  EXPECT_DOUBLE_EQ(again.flops_per_s, 2 * n * n * n / again.product_seconds);
  EXPECT_GE(again.repeat_seconds, 2 * again.product_seconds);
}

}  // namespace
}  // namespace dtrain::gemm_probe_test
