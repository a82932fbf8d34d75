#include "runtime/engine/cpu_rng.h"

#include <mutex>

#include "ATen/CPUGeneratorImpl.h"

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

}  // namespace dtrain
