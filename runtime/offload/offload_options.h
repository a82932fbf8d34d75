// zero_optimization.offload_optimizer, and how states are made by it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "dtrain/config.h"
#include "runtime/offload/far_tier.h"

namespace dtrain {

struct OffloadOptions {
  enum class Device { kNone, kMemory, kFile };
  Device device = Device::kNone;
  std::string folder;
  int buffers = 4;
};

OffloadOptions OffloadOptionsOf(const Config& config);

// REQUIRES: a device.
absl::StatusOr<FarState> MakeFarState(const OffloadOptions& options, int64_t elements,
                                      at::ScalarType type, float value);

}  // namespace dtrain
