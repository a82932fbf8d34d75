#include "runtime/engine/loss_unit.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "comm/group.h"

namespace dtrain {

absl::Status TakeLossScale(Job& job, int64_t count, EngineState& state) {
  if (const double fixed = job.config().precision().loss_scale; fixed > 0) {
    state.progress.loss_scale.scale = fixed;
  }
  if (state.progress.loss_unit > 0) {
    return absl::OkStatus();
  }
  double unit = std::exp2(std::round(std::log2(static_cast<double>(std::max<int64_t>(1, count)))));
  DT_ASSIGN_OR_RETURN(const comm::Work work,
                      job.group().Broadcast({&unit, sizeof(unit), DType::kFloat64, {}}, 0,
                                            {.name = "loss unit", .caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  state.progress.loss_unit = unit;
  return absl::OkStatus();
}

absl::Status CheckLoss(const Loss& loss) {
  if (!loss.sum.defined() || loss.sum.numel() != 1 || !loss.sum.requires_grad()) {
    return absl::InvalidArgumentError(
        "the loss must be one number that depends on a trainable parameter");
  }
  if (loss.count < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the loss counts %d samples; allowed: 0 or more", loss.count));
  }
  return absl::OkStatus();
}

}  // namespace dtrain
