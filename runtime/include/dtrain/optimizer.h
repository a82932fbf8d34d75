// An optimizer of the program's own, given to the engine by EngineOptions::optimizer.
//
// The engine keeps its states (fp32, saved in checkpoints, shared out by ZeRO), unscales and clips
// the gradient, sums it over ranks, keeps masters in mixed precision and rounds the weights.
// The program gives the rule for elements. A rule that is a function of weight, gradient and states
// of one element alone gives the same model at every ZeRO stage and number of ranks. One that looks
// at more (norms of whole parameters) sees only the part that this rank updates.
//
// A rank that trains on a GPU updates on the host by it: states and masters are the host's, as with
// zero_optimization.offload_optimizer, gradients come and new weights go through pinned buffers,
// and each step waits for the device once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtrain/optimizer_config.h"

namespace dtrain {

// A run of consecutive elements of one parameter.
struct ParameterPart {
  absl::string_view name;            // The parameter's name in the module.
  absl::Span<const int64_t> shape;   // The whole parameter's.
  int64_t begin = 0;                 // The first of the parameter's elements that is in the run.
  absl::Span<float> weights;         // Masters in mixed precision.
  absl::Span<const float> gradient;  // Mean over the batch, clipped.
  absl::Span<const absl::Span<float>> states;  // In the order of states(); zeros at first.
  int64_t update = 1;                          // Updates of the parameter, this one included.
  // By optimizer.params, parameter groups and the schedule.
  ParamSettings settings;
};

// The rule of an update. Thread-safe; the engine keeps the states.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Checkpoints say whose states they hold: another name does not resume them.
  virtual std::string name() const = 0;
  // The names, in checkpoints, of the states that it keeps of each element.
  virtual std::vector<std::string> states() const = 0;
  // Changes weights and states. Called from several threads at a time with different parts.
  virtual void Update(const ParameterPart& part) const = 0;
};

}  // namespace dtrain
