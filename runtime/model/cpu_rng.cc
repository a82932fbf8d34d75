#include "runtime/model/cpu_rng.h"

#include <mutex>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Context.h"

namespace dtrain {
namespace {

std::optional<at::Device>& RngDevice() {
  static std::optional<at::Device> device;
  return device;
}

at::Generator DeviceGenerator() { return at::globalContext().defaultGenerator(*RngDevice()); }

void Seed(at::Generator generator, uint64_t seed) {
  std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

}  // namespace

void UseDeviceRng(at::Device device) { RngDevice() = device; }

at::Tensor DeviceRngState() {
  if (!RngDevice().has_value()) {
    return {};
  }
  at::Generator generator = DeviceGenerator();
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void SetDeviceRngState(const at::Tensor& state) {
  at::Generator generator = DeviceGenerator();
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

void SeedRng(uint64_t seed) {
  Seed(at::detail::getDefaultCPUGenerator(), seed);
  if (RngDevice().has_value()) {
    Seed(DeviceGenerator(), seed);
  }
}

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

CpuRngSnapshot::CpuRngSnapshot() : device_state_(DeviceRngState()) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  auto* const cpu = at::check_generator<at::CPUGeneratorImpl>(generator);
  std::lock_guard lock(generator.mutex());
  engine_.emplace(cpu->engine());
  next_float_normal_ = cpu->next_float_normal_sample();
  next_double_normal_ = cpu->next_double_normal_sample();
}

at::Tensor CpuRngSnapshot::CpuState() const {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>();
  auto* const cpu = at::check_generator<at::CPUGeneratorImpl>(generator);
  cpu->set_engine(*engine_);
  cpu->set_next_float_normal_sample(next_float_normal_);
  cpu->set_next_double_normal_sample(next_double_normal_);
  return generator.get_state();
}

void CpuRngSnapshot::Restore() const {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  auto* const cpu = at::check_generator<at::CPUGeneratorImpl>(generator);
  std::lock_guard lock(generator.mutex());
  cpu->set_engine(*engine_);
  cpu->set_next_float_normal_sample(next_float_normal_);
  cpu->set_next_double_normal_sample(next_double_normal_);
  if (device_state_.defined()) {
    SetDeviceRngState(device_state_);
  }
}

}  // namespace dtrain
