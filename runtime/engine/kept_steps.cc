#include "runtime/engine/kept_steps.h"

#include "base/status.h"
#include "runtime/engine/live_passes.h"

namespace dtrain {

GradientMemory MemoryOfReduced(const GradientSync& gradients) {
  const ReducedGradient reduced = gradients.reduced();
  return {const_cast<float*>(reduced.data), reduced.by_shard};
}

void KeptSteps::Keep(const StepVerdict& verdict) const {
  if (!state.hooks.keep_step) {
    return;
  }
  state.hooks.keep_step({.step = state.progress.step + 1,
                         .count = verdict.count,
                         .samples = verdict.samples,
                         .loss_sum = verdict.loss_sum,
                         .sum_of_squares = verdict.sum_of_squares,
                         .finite = verdict.finite,
                         .loss_unit = state.progress.loss_unit,
                         .unused = plan.left_out()});
}

void KeptSteps::Updated() const {
  if (state.hooks.step_updated) {
    state.hooks.step_updated();
  }
}

absl::Status KeptSteps::Update(const StepEnd& end, StepReport& report,
                               absl::FunctionRef<absl::Status(const GradientMemory&)> fill) const {
  state.progress.loss_unit = end.loss_unit;
  plan.Replay(end.unused);
  if (end.updates()) {
    DT_RETURN_IF_ERROR(fill(MemoryOfReduced(gradients)));
  }
  DT_RETURN_IF_ERROR(DropAllGathered(state));
  return strategy.Replay({.loss_sum = end.loss_sum,
                          .count = end.count,
                          .samples = end.samples,
                          .sum_of_squares = end.sum_of_squares,
                          .finite = end.finite},
                         report);
}

}  // namespace dtrain
