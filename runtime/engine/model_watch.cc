#include "runtime/engine/model_watch.h"

#include "base/status.h"

namespace dtrain {

absl::Status ModelWatch::CheckUnchanged() const {
  DT_RETURN_IF_ERROR(parameters_.CheckUnchanged(module_));
  if (buffers_.has_value()) {
    DT_RETURN_IF_ERROR(buffers_->CheckUnchanged(module_));
  }
  DT_RETURN_IF_ERROR(state_.flat->CheckInPlace());
  if (state_.frozen != nullptr) {
    DT_RETURN_IF_ERROR(state_.frozen->flat->CheckInPlace());
    DT_RETURN_IF_ERROR(state_.frozen->flat->CheckUnwritten());
  }
  return state_.live != nullptr || state_.optimizer.master.defined() ? state_.flat->CheckUnwritten()
                                                                     : absl::OkStatus();
}

}  // namespace dtrain
