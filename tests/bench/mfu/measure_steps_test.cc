#include "bench/mfu/measure_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "bench/mfu/facts.h"

namespace dtrain::bench::measure_steps_test {
namespace {

// A device that takes a second for a step, and a host that takes 10 ms to queue one and waits in it
// for the end of the step before, as an engine's does on a GPU.
struct Device {
  static constexpr int64_t kStep = 1000000000;
  static constexpr int64_t kQueue = 10000000;
  int64_t now = 0;
  int64_t busy_until = 0;
  void Step() {
    now += kQueue;
    const int64_t before = busy_until;
    busy_until = std::max(now, busy_until) + kStep;
    now = std::max(now, before);
  }
  void Synchronize() { now = std::max(now, busy_until); }
};

MfuFacts FactsOf(Device& device, int steps) {
  const auto measured = MeasureSteps(
      steps,
      [&] {
        device.Step();
        return absl::OkStatus();
      },
      [&] {
        device.Synchronize();
        return absl::OkStatus();
      },
      [&] { return device.now; });
  EXPECT_TRUE(measured.ok()) << measured.status();
  MfuFacts facts;
  facts.on_gpu = true;
  facts.step_seconds = measured->call_s;
  facts.measured_s = measured->total_s;
  return facts;
}

TEST(MeasureSteps, TheFirstStepOfADeviceThatRunsBehindIsNoShorter) {
  for (const int steps : {1, 2, 5}) {
    for (const int unmeasured : {0, 1, 3}) {  // Queued work is none of it.
      Device device;
      for (int i = 0; i < unmeasured; ++i) {
        device.Step();
      }
      const MfuFacts facts = FactsOf(device, steps);
      EXPECT_EQ(facts.step_seconds.size(), static_cast<size_t>(steps));
      EXPECT_LT(facts.step_seconds[0], 0.05) << "its call returns at once";
      EXPECT_NEAR(StepSeconds(facts), 1 + 0.01 / steps, 1e-9);
    }
  }
}

TEST(MeasureSteps, WholeStepsFollowShortOnesAndGraphsAreThereBeforeTheClockStarts) {
  const auto whole = [](const char* device, int warm_up, int64_t short_micro_batches) {
    MfuOptions options;
    options.device = device;
    options.warm_up = warm_up;
    options.short_micro_batches = short_micro_batches;
    return UnmeasuredWholeSteps(options);
  };
  EXPECT_EQ(whole("cpu", 1, 0), 0);
  EXPECT_EQ(whole("cpu", 3, 2), 2);
  EXPECT_EQ(whole("cuda", 3, 2), 2);
  EXPECT_EQ(whole("cuda", 1, 2), 3);
  EXPECT_EQ(whole("cuda", 1, 0), 3);
  EXPECT_EQ(whole("cuda", 3, 0), 1);
  EXPECT_EQ(whole("cuda", 7, 0), 0);
}

TEST(MeasureSteps, AnErrorOfAStepEndsIt) {
  int calls = 0;
  const auto measured = MeasureSteps(
      3, [&] { return ++calls == 2 ? absl::UnavailableError("lost") : absl::OkStatus(); },
      [] { return absl::OkStatus(); }, [] { return int64_t{0}; });
  EXPECT_EQ(measured.status().message(), "lost");
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace dtrain::bench::measure_steps_test
