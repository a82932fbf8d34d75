#include "runtime/engine/transaction.h"

#include <mutex>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/core/grad_mode.h"

namespace dtrain {

at::Tensor CpuRngState() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void SetCpuRngState(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

StepTransaction::StepTransaction(const std::vector<NamedTensor>& module_buffers, Tracked* data)
    : module_buffers_(module_buffers), data_(data), rng_state_(CpuRngState()) {
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

absl::Status StepTransaction::Rollback() {
  SetCpuRngState(rng_state_);
  RestoreBuffers();
  return data_ == nullptr ? absl::OkStatus() : data_->RestoreState(data_state_);
}

}  // namespace dtrain
