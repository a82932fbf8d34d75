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
    at::Tensor buffer = module_buffers_[i].tensor;
    const at::Tensor& copy = buffer_copies_[i];
    // A program may have changed more than its values, for which the step has failed.
    if (buffer.sizes() == copy.sizes() && buffer.scalar_type() == copy.scalar_type() &&
        buffer.device() == copy.device()) {
      buffer.copy_(copy);
    } else {
      buffer.set_data(copy);
    }
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
