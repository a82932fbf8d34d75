// zero_optimization.offload_optimizer and offload_param, and how far memory is made by them.
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
  std::string setting;  // The key that says the folder.
  int buffers = 4;
  int threads = 1;   // They read and write.
  double ratio = 1;  // Share of the elements that is far; the first ones are near.
};

// The options for optimizer states and masters, and those for the weights that a rank keeps at ZeRO
// stage 3.
OffloadOptions OptimizerOffload(const Config& config);
OffloadOptions ParameterOffload(const Config& config);

// How many of `elements` are near: whole pages of any type of state.
int64_t NearElements(const OffloadOptions& options, int64_t elements);

// REQUIRES: a device.
absl::StatusOr<FarState> MakeFarState(const OffloadOptions& options, int64_t elements,
                                      at::ScalarType type, float value);

}  // namespace dtrain
