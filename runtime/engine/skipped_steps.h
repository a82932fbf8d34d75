// Steps that changed nothing, because the gradient was not finite or no sample counted: what the
// log says of each, and when so many follow each other that the run ends. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "dtrain/config.h"
#include "dtrain/metrics.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

class SkippedSteps {
 public:
  // REQUIRES: both outlive this object.
  SkippedSteps(const Config& config, const EngineState& state) : config_(config), state_(state) {}

  // A step changed weights.
  void End();
  // No sample of the step counted. FailedPrecondition after many such steps in a row: the data is
  // wrong. All ranks get the same status here and below.
  absl::Status NoTarget(const StepReport& skipped);
  // The gradient of `culprit` was not finite; `scale` is the loss scale of that step, and the state
  // has the next one. FailedPrecondition when no later step can be better.
  absl::Status NonFinite(const StepReport& skipped, const std::string& culprit,
                         const plan::LossScale& scale);

 private:
  // Steps of one kind that follow each other.
  struct Row {
    int count = 0;
    int64_t first_step = 0;
    std::string culprit;  // In the first of them.
    double loss = 0;      // Likewise.
  };
  absl::Status Diverged(const StepReport& skipped, const std::string& culprit,
                        const plan::LossScale& scale) const;

  const Config& config_;
  const EngineState& state_;
  Row non_finite_;
  Row without_target_;
};

}  // namespace dtrain
