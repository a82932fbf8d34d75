#include "runtime/engine/transaction.h"

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"

namespace dtrain {

StepTransaction::StepTransaction(const std::vector<NamedTensor>& module_buffers, Tracked* data)
    : module_buffers_(module_buffers), data_(data) {
  const at::NoGradGuard no_grad;
  if (data_ != nullptr) {
    data_state_ = data_->SaveState();
  }
  for (const NamedTensor& buffer : module_buffers_) {
    buffer_copies_.push_back(buffer.tensor.clone());
  }
}

void StepTransaction::RestoreBuffers() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < module_buffers_.size(); ++i) {
    module_buffers_[i].tensor.copy_(buffer_copies_[i]);
  }
}

void StepTransaction::RestoreBuffersWhere(const at::Tensor& flag) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < module_buffers_.size(); ++i) {
    const at::Tensor& buffer = module_buffers_[i].tensor;
    buffer.copy_(at::where(flag.squeeze().ne(0), buffer_copies_[i], buffer));
  }
}

absl::Status StepTransaction::Rollback() {
  rng_.Restore();
  RestoreBuffers();
  return data_ == nullptr ? absl::OkStatus() : data_->RestoreState(data_state_);
}

}  // namespace dtrain
