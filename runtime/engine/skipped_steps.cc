#include "runtime/engine/skipped_steps.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "base/log.h"
#include "runtime/plan/optimizer/loss_scale.h"

namespace dtrain {
namespace {

constexpr int kNonFiniteStepsMax = 20;      // In a row: the run has diverged.
constexpr int kStepsWithoutTargetMax = 20;  // In a row: the data is wrong.

std::string LossText(double loss) {
  return std::isfinite(loss) ? "" : absl::StrFormat(", where the loss was %g", loss);
}

// Says what to look at. The learning rate matters only where weights were updated.
std::string Advice(bool updated, bool fixed_scale) {
  std::string advice = updated ? "lower the learning rate (optimizer.params.lr), " : "";
  advice += fixed_scale ? "lower fp16.loss_scale, " : "";
  advice += advice.empty() ? "look at the data" : "or look at the data";
  return advice +
         (updated ? "" : ", the loss function and the first weights, which no step changed");
}

}  // namespace

void SkippedSteps::End() {
  non_finite_ = {};
  without_target_ = {};
}

// One batch of padding alone is no reason to end a run, which would meet it again when it resumes.
absl::Status SkippedSteps::NoTarget(const StepReport& skipped) {
  if (without_target_.count++ == 0) {
    without_target_.first_step = skipped.step;
  }
  DT_LOG(Warning) << "step " << skipped.step << " skipped: in its " << skipped.tokens << " "
                  << (skipped.unit.empty() ? "samples" : skipped.unit)
                  << " no target counts, so there is no loss and no gradient; look at the labels "
                     "of its batch";
  if (without_target_.count < kStepsWithoutTargetMax) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "%d steps in a row, from step %d to step %d, had no target that counts (each Loss has a "
      "count of 0): look at the labels of the data and at the loss function",
      without_target_.count, without_target_.first_step, skipped.step));
}

absl::Status SkippedSteps::NonFinite(const StepReport& skipped, const std::string& culprit,
                                     const plan::LossScale& scale) {
  const PrecisionConfig& precision = config_.precision();
  const bool scaled = precision.kind == PrecisionConfig::Kind::kFloat16;
  const double loss = skipped.loss;
  DT_LOG(Warning) << "step " << skipped.step << " skipped: the gradient of " << culprit
                  << " is not finite (loss " << loss << ")"
                  << (scaled ? absl::StrFormat("; loss scale %g, next %g", scale.scale,
                                               state_.progress.loss_scale.scale)
                             : "");
  without_target_ = {};
  if (non_finite_.count == 0) {
    non_finite_ = {.first_step = skipped.step, .culprit = culprit, .loss = loss};
  }
  ++non_finite_.count;
  const bool smaller_scale_helps = !plan::IsSmallest(precision, scale);
  return smaller_scale_helps ? absl::OkStatus() : Diverged(skipped, culprit, scale);
}

absl::Status SkippedSteps::Diverged(const StepReport& skipped, const std::string& culprit,
                                    const plan::LossScale& scale) const {
  const PrecisionConfig& precision = config_.precision();
  const bool scaled = precision.kind == PrecisionConfig::Kind::kFloat16;
  const double loss = skipped.loss;
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
                  skipped.step, culprit, scale.scale, non_finite_.culprit, non_finite_.first_step,
                  LossText(non_finite_.loss),
                  Advice(state_.progress.updates > 0, /*fixed_scale=*/false)));
  }
  if (non_finite_.count >= kNonFiniteStepsMax) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%d steps in a row had a gradient that is not finite, up to step %d (first %s in step "
        "%d%s): %s",
        non_finite_.count, skipped.step, non_finite_.culprit, non_finite_.first_step,
        LossText(non_finite_.loss), Advice(state_.progress.updates > 0, scaled)));
  }
  return absl::OkStatus();
}

}  // namespace dtrain
