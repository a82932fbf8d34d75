// The random numbers that a model draws, saved and put back: of the default CPU generator and,
// where this process trains on a GPU, of that one's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ATen/core/MT19937RNGEngine.h"
#include "ATen/core/Tensor.h"

namespace dtrain {

// The GPU whose generator belongs to every snapshot from now on. Not thread-safe; once a process.
void UseDeviceRng(at::Device device);

// The default CPU generator as plain values: a step saves it in a fraction of the time that a state
// tensor takes. A GPU's generator is a seed and an offset on the host: saving it waits for nothing.
class CpuRngSnapshot {
 public:
  // Saves.
  CpuRngSnapshot();
  void Restore() const;
  // What CpuRngState gave when it was saved. May be called by any thread, at any time after.
  at::Tensor CpuState() const;
  // What DeviceRngState gave then.
  const at::Tensor& device_state() const { return device_state_; }

 private:
  std::optional<at::mt19937> engine_;  // Always set; made of a default it would be seeded first.
  // The second half of a pair of normal samples that was not drawn yet.
  std::optional<float> next_float_normal_;
  std::optional<double> next_double_normal_;
  at::Tensor device_state_;  // The GPU's generator; undefined without a GPU.
};

// Both generators start from `seed`.
void SeedRng(uint64_t seed);

// While it lives, both generators give the numbers of a seed; then they go on from where they were.
class ScopedSeed {
 public:
  explicit ScopedSeed(uint64_t seed) { SeedRng(seed); }
  ~ScopedSeed() { before_.Restore(); }
  ScopedSeed(const ScopedSeed&) = delete;
  ScopedSeed& operator=(const ScopedSeed&) = delete;

 private:
  const CpuRngSnapshot before_;
};

inline constexpr size_t kCpuRngBytes = 5056;

// State of the default CPU generator: [kCpuRngBytes] uint8.
at::Tensor CpuRngState();
void SetCpuRngState(const at::Tensor& state);
// The same of the GPU's generator, a CPU tensor of bytes; undefined without one.
at::Tensor DeviceRngState();
// REQUIRES: UseDeviceRng.
void SetDeviceRngState(const at::Tensor& state);

}  // namespace dtrain
