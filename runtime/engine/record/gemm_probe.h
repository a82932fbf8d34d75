// The GEMM rate of this rank's threads, measured in this run: what "GEMM fraction" divides by.
//
// A busy machine slows a measurement down and never speeds one up. The rate is therefore the best
// of several, which are taken over the whole run and cost a bounded share of it.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "c10/core/ScalarType.h"
#include "runtime/device/device.h"

namespace dtrain {

// The engine's step after which it is measured first, also when it resumed at a later one: caches
// are warm, and people do not look yet.
inline constexpr int64_t kGemmProbeStep = 2;

// The times of products of square matrices.
struct GemmTiming {
  double flops_per_s = 0;      // The best.
  int64_t size = 0;            // The largest matrices whose product is short enough to repeat.
  double product_seconds = 0;  // One product of that size.
  double repeat_seconds = 0;   // RepeatGemmRate's for it, with all that it prepares.
};

// Products of square matrices of this type, the best of sizes up to 1,024 (on a GPU 8,192, where it
// waits for the device); takes about 0.1 s. All ranks of a node should call it at the same time, as
// they train at the same time. Draws no random number of the run's.
GemmTiming MeasureGemmRate(const Device& device, at::ScalarType type);
// The better of two products of one size, on the host.
GemmTiming RepeatGemmRate(at::ScalarType type, int64_t size);

// When it is measured, and what came of it. Not thread-safe.
class GemmProbe {
 public:
  struct Measures {
    std::function<GemmTiming()> first;
    std::function<GemmTiming(int64_t size)> repeat;  // Null: the first one stands.
  };
  // Repeats take about this share of the steps' time, and less than 0.1 % of it where one takes
  // longer than the one before.
  static constexpr double kShareMax = 0.0005;

  explicit GemmProbe(Measures measures) : measures_(std::move(measures)) {}

  // Behind a step that took `seconds`, when its time is taken.
  void AfterStep(double seconds);
  // FLOP/s; 0: not measured yet.
  double rate() const { return rate_; }

 private:
  void Take(const GemmTiming& timing);

  const Measures measures_;
  int64_t steps_ = 0;
  double rate_ = 0;
  int64_t size_ = 0;      // The size that is measured next.
  double cost_s_ = 0;     // The time that the next one will take.
  double trained_s_ = 0;  // Since the last measurement.
};

}  // namespace dtrain
