#include "runtime/plan/optimizer/one_cycle.h"

#include <cmath>

namespace dtrain::plan {

double CyclePosition(const OneCycleConfig& cycle, int64_t done) {
  const auto first = static_cast<double>(cycle.first_steps);
  const auto second = static_cast<double>(cycle.second_steps);
  const auto at = static_cast<double>(done % (cycle.first_steps + cycle.second_steps));
  const bool rising = at <= first;
  const double position = rising ? at / first : (first + second - at) / second;
  const int64_t stairs = rising ? cycle.first_stairs : cycle.second_stairs;
  if (stairs == 0) {
    return position;
  }
  // From the integers: a quotient just under a stair would lose all of it.
  const auto count = static_cast<double>(stairs);
  return std::floor(rising ? at * count / first : (first + second - at) * count / second) / count;
}

double CycleLr(const OneCycleConfig& cycle, int64_t n) {
  const int64_t steps = cycle.first_steps + cycle.second_steps;
  if (n < 0) {
    return cycle.min_lr;
  }
  if (n < steps) {
    return cycle.min_lr + (cycle.max_lr - cycle.min_lr) * CyclePosition(cycle, n + 1);
  }
  if (cycle.decay_steps == 0) {
    return cycle.min_lr;
  }
  const double intervals =
      static_cast<double>(n - steps + 1) / static_cast<double>(cycle.decay_steps);
  return cycle.min_lr / (1 + cycle.decay_lr_rate * intervals);
}

double CycleMomentum(const OneCycleConfig& cycle, int64_t n) {
  if (n < 0) {
    return cycle.min_momentum;
  }
  const bool over = n >= cycle.first_steps + cycle.second_steps;
  return over ? cycle.max_momentum
              : cycle.max_momentum -
                    (cycle.max_momentum - cycle.min_momentum) * CyclePosition(cycle, n + 1);
}

}  // namespace dtrain::plan
