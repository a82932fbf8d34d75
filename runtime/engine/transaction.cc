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

CpuRngSnapshot::CpuRngSnapshot() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  auto* const cpu = at::check_generator<at::CPUGeneratorImpl>(generator);
  std::lock_guard lock(generator.mutex());
  engine_.emplace(cpu->engine());
  next_float_normal_ = cpu->next_float_normal_sample();
  next_double_normal_ = cpu->next_double_normal_sample();
}

void CpuRngSnapshot::Restore() const {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  auto* const cpu = at::check_generator<at::CPUGeneratorImpl>(generator);
  std::lock_guard lock(generator.mutex());
  cpu->set_engine(*engine_);
  cpu->set_next_float_normal_sample(next_float_normal_);
  cpu->set_next_double_normal_sample(next_double_normal_);
}

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

absl::Status StepTransaction::Rollback() {
  rng_.Restore();
  RestoreBuffers();
  return data_ == nullptr ? absl::OkStatus() : data_->RestoreState(data_state_);
}

}  // namespace dtrain
