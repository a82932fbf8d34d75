// What the engine says of a step that was skipped, on the host and on a GPU.
#include <cmath>
#include <string>

#include "absl/strings/str_format.h"
#include "base/log.h"
#include "runtime/engine/engine_impl.h"

namespace dtrain {
namespace {

constexpr int kNonFiniteStepsMax = 20;      // In a row; then the run is stopped as diverged.
constexpr int kStepsWithoutTargetMax = 20;  // In a row; then the data is wrong.

std::string LossText(double loss) {
  return std::isfinite(loss) ? "" : absl::StrFormat(", where the loss was %g", loss);
}

// What to look at. Weights that were never updated are no matter of the learning rate.
std::string Advice(bool updated, bool fixed_scale) {
  std::string advice = updated ? "lower the learning rate (optimizer.params.lr), " : "";
  advice += fixed_scale ? "lower fp16.loss_scale, " : "";
  advice += advice.empty() ? "look at the data" : "or look at the data";
  return advice +
         (updated ? "" : ", the loss function and the first weights, which no step changed");
}

}  // namespace

void Engine::Impl::EndSkipping() {
  non_finite = {};
  without_target = {};
}

// One batch of padding alone is no reason to end a run, which would meet it again when it resumes.
absl::Status Engine::Impl::AfterNoTarget(const StepReport& skipped) {
  if (without_target.count++ == 0) {
    without_target.first_step = skipped.step;
  }
  DT_LOG(Warning) << "step " << skipped.step << " skipped: in its " << skipped.tokens << " "
                  << (skipped.unit.empty() ? "samples" : skipped.unit)
                  << " no target counts, so there is no loss and no gradient; look at the labels "
                     "of its batch";
  if (without_target.count < kStepsWithoutTargetMax) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "%d steps in a row, from step %d to step %d, had no target that counts (each Loss has a "
      "count of 0): look at the labels of the data and at the loss function",
      without_target.count, without_target.first_step, skipped.step));
}

// Says what was skipped, and ends a run that no further step can save; `scale` is that of the step.
absl::Status Engine::Impl::AfterSkip(const StepReport& skipped, const std::string& culprit,
                                     const plan::LossScale& scale) {
  const PrecisionConfig& precision = job.config().precision();
  const bool scaled = precision.kind == PrecisionConfig::Kind::kFloat16;
  const double loss = skipped.loss;
  DT_LOG(Warning) << "step " << skipped.step << " skipped: the gradient of " << culprit
                  << " is not finite (loss " << loss << ")"
                  << (scaled ? absl::StrFormat("; loss scale %g, next %g", scale.scale,
                                               state.loss_scale.scale)
                             : "");
  without_target = {};
  if (non_finite.count++ == 0) {
    non_finite.first_step = skipped.step;
    non_finite.culprit = culprit;
    non_finite.loss = loss;
  }
  if (!plan::IsSmallest(precision, scale)) {
    return absl::OkStatus();  // A smaller scale is the answer.
  }
  if (scaled && precision.loss_scale == 0) {
    return absl::FailedPreconditionError(
        std::isfinite(loss)
            ? absl::StrFormat(
                  "step %d: the gradient of %s overflows fp16 at the smallest loss scale, %g: "
                  "lower the learning rate (optimizer.params.lr) or fp16.min_loss_scale, or use "
                  "bf16.enabled",
                  skipped.step, culprit, scale.scale)
            : absl::StrFormat(
                  "step %d: the gradient of %s is not finite at the smallest loss scale either, "
                  "%g (first %s in step %d%s): %s, or use bf16.enabled",
                  skipped.step, culprit, scale.scale, non_finite.culprit, non_finite.first_step,
                  LossText(non_finite.loss), Advice(state.updates > 0, /*fixed_scale=*/false)));
  }
  if (non_finite.count >= kNonFiniteStepsMax) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%d steps in a row had a gradient that is not finite, up to step %d (first %s in step "
        "%d%s): %s",
        non_finite.count, skipped.step, non_finite.culprit, non_finite.first_step,
        LossText(non_finite.loss), Advice(state.updates > 0, scaled)));
  }
  return absl::OkStatus();
}

}  // namespace dtrain
