// The common part of simulations of an elastic job: time, chance, and an agent's patience.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "base/numeric/prng.h"
#include "launcher/nodes/elastic_job.h"

namespace dtrain::launcher::simulation {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1000 * kMillisecond;
constexpr int64_t kTick = 100 * kMillisecond;

// Chance that follows from a seed alone.
class Chance {
 public:
  explicit Chance(uint64_t seed) : random_(seed) {}

  // 0 to bound - 1.
  int Below(int bound) { return static_cast<int>(random_.Below(static_cast<uint64_t>(bound))); }
  bool Rarely(int one_in) { return Below(one_in) == 0; }

 private:
  SplitMix64 random_;
};

// Draws how many nodes the job may have, up to `nodes_max`; it never ends for lack of restarts.
inline ElasticOptions JobOf(Chance& chance, int nodes_max) {
  ElasticOptions options;
  options.nodes_max = nodes_max;
  options.nodes_min = 1 + chance.Below(nodes_max - 1);
  options.restarts_max = 1'000'000;
  options.join_timeout = absl::Hours(1);
  options.last_call = absl::Seconds(1 + chance.Below(5));
  options.stop_grace = absl::Seconds(5);
  options.exit_barrier = absl::Seconds(5);
  options.reports = absl::Seconds(3);
  return options;
}

}  // namespace dtrain::launcher::simulation
