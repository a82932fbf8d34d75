#include "runtime/engine/engine_health.h"

#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "comm/call.h"
#include "comm/nccl/device_group.h"
#include "runtime/engine/rank_difference.h"
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

absl::Status EngineHealth::Explained(const absl::Status& failure,
                                     const std::vector<int>& readiness) {
  if (state_.live == nullptr || job_.state().store == nullptr ||
      !comm::AreRanksDifferent(failure) || std::exchange(explained_, true)) {
    return failure;
  }
  const RankTrace mine{.reads = state_.live->reads(),
                       .frozen_reads = state_.frozen == nullptr ? std::vector<int64_t>{}
                                                                : state_.frozen->live->reads(),
                       .gradients = readiness};
  const std::string prefix =
      absl::StrFormat("ranks-differ/%d/%d", job_.group().epoch(), state_.progress.step);
  return NameDifference(failure, state_, mine,
                        {*job_.state().store, prefix, job_.rank(), job_.world_size()},
                        job_.config().gather_limits().live_max);
}

void EngineHealth::Refuse(const absl::Status& failure) {
  if (!failure_.ok() && !refuses_) {
    failure_ = failure;
    refuses_ = true;
  }
}

}  // namespace dtrain
