// What the engine says of a step that was skipped, on the host and on a GPU.
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "runtime/engine/engine_impl.h"

namespace dtrain {
namespace {

constexpr int kNonFiniteStepsMax = 20;  // In a row; then the run is stopped as diverged.

}  // namespace

// Says what was skipped, and ends a run that no further step can save; `scale` is that of the step.
absl::Status Engine::Impl::AfterSkip(const StepReport& skipped, const std::string& culprit,
                                     const plan::LossScale& scale) {
  const PrecisionConfig& precision = job.config().precision();
  const bool scaled = precision.kind == PrecisionConfig::Kind::kFloat16;
  DT_LOG(Warning) << "step " << skipped.step << " skipped: the gradient of " << culprit
                  << " is not finite (loss " << skipped.loss << ")"
                  << (scaled ? absl::StrFormat("; loss scale %g, next %g", scale.scale,
                                               state.loss_scale.scale)
                             : "");
  if (!plan::IsSmallest(precision, scale)) {
    return absl::OkStatus();  // A smaller scale is the answer.
  }
  if (scaled && precision.loss_scale == 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "step %d: the gradient of %s overflows fp16 at the smallest loss scale, %g: lower the "
        "learning rate (optimizer.params.lr) or fp16.min_loss_scale, or use bf16.enabled",
        skipped.step, culprit, scale.scale));
  }
  if (++non_finite_in_a_row >= kNonFiniteStepsMax) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%d steps in a row had a gradient that is not finite, up to step %d (first %s): lower the "
        "learning rate (optimizer.params.lr)%s or look at the data",
        kNonFiniteStepsMax, skipped.step, culprit, scaled ? " or fp16.loss_scale" : ""));
  }
  return absl::OkStatus();
}

}  // namespace dtrain
