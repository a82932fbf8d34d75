// Steps leave the engine here for a step journal, and come back when it is replayed. An update
// follows from the state before it, the numbers of the agreement and the reduced gradient, so these
// are all that is kept. Driven by the thread that trains.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "dtrain/metrics.h"
#include "runtime/engine/agreement.h"
#include "runtime/engine/step_strategy.h"
#include "runtime/engine/update_plan.h"
#include "runtime/gradients/gradient_sync.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/optimizer/step_end.h"

namespace dtrain {

// The memory of the reduced gradient. Between the agreement and the update nobody else uses it.
GradientMemory MemoryOfReduced(const GradientSync& gradients);

// The parts of an engine that take part in it.
struct KeptSteps {
  EngineState& state;
  UpdatePlan& plan;
  GradientSync& gradients;
  StepStrategy& strategy;

  // Gives the step that ends as `verdict` says to StepHooks::keep_step, if there is one.
  void Keep(const StepVerdict& verdict) const;
  // The update of that step has ended, or is queued.
  void Updated() const;
  // Collective: updates once more by the gradient that `fill` brings. `report` gets the update's
  // times. An error may leave weights of two steps.
  absl::Status Update(const StepEnd& end, StepReport& report,
                      absl::FunctionRef<absl::Status(const GradientMemory&)> fill) const;
};

}  // namespace dtrain
