#include "runtime/engine/engine_health.h"

#include <string>

#include "absl/strings/str_format.h"
#include "comm/nccl/device_group.h"
#include "runtime/job/job_state.h"

namespace dtrain {

absl::Status EngineHealth::Usable() const {
  if (!refuses_) {
    return failure_;
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "this engine cannot go on after the step that failed before (%s): end the program on all "
      "ranks and start it again; it resumes from its last checkpoint",
      failure_.message()));
}

void EngineHealth::Tear(const absl::Status& failure) {
  mixed_weights_.Update(failure);
  Break(failure);
}

void EngineHealth::EndGroups(int64_t step, const absl::Status& failure) {
  if (job_.world_size() == 1) {
    return;
  }
  const bool of_a_group =
      absl::IsAborted(failure) || absl::IsUnavailable(failure) || absl::IsDeadlineExceeded(failure);
  const std::string reason = of_a_group
                                 ? std::string(failure.message())
                                 : absl::StrFormat("step %d failed on rank %d", step, job_.rank());
  job_.group().Abort(reason);
  if (job_.state().device_group != nullptr) {
    job_.state().device_group->Abort(reason);
  }
  for (LiveParameters* const live : state_.lives()) {
    live->Abort(reason);
  }
  Break(absl::AbortedError(reason));
}

void EngineHealth::Refuse(const absl::Status& failure) {
  if (!failure_.ok() && !refuses_) {
    failure_ = failure;
    refuses_ = true;
  }
}

}  // namespace dtrain
