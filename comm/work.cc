#include "comm/work.h"

#include "comm/work_state.h"

namespace dtrain::comm {

absl::Status Work::Wait(Deadline deadline) const {
  return state_ == nullptr ? absl::OkStatus() : state_->Wait(deadline);
}

bool Work::Done() const { return state_ == nullptr || state_->Done(); }

int64_t Work::DurationNanos() const { return state_ == nullptr ? 0 : state_->DurationNanos(); }

}  // namespace dtrain::comm
