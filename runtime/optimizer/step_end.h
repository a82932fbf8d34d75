// The update of a step follows from the state before it and from what is here: the numbers that the
// ranks agreed on, and the reduced gradient. A step journal keeps both, and a replay brings them
// back.
#pragma once

#include <cstdint>
#include <vector>

namespace dtrain {

struct StepEnd {
  int64_t step = 0;  // From 1.
  int64_t count = 0;
  int64_t samples = 0;
  double loss_sum = 0;
  double sum_of_squares = 0;
  bool finite = true;    // The gradient is finite.
  double loss_unit = 0;  // EngineState::loss_unit.
  // By entry of the layout: whether the update leaves it as it is. Empty: it leaves none out.
  std::vector<uint8_t> unused = {};
  bool operator==(const StepEnd&) const = default;

  // Whether the step changes weights.
  bool updates() const { return finite && count > 0; }
};

// The memory of a ReducedGradient, for who may write to it between the agreement and the update.
struct GradientMemory {
  float* data = nullptr;
  bool by_shard = false;

  float* at(int64_t flat, int64_t local) const { return data + (by_shard ? local : flat); }
};

}  // namespace dtrain
