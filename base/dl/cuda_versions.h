// Tells whether CUDA can be used here, by the versions of its driver and runtime, and why not. The
// one place that decides it, for ranks, benchmarks and the doctor.
//
// Free of CUDA's headers: libraries are opened by name. Thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace dtrain {

// CUDA's version numbers (13000: 13.0); 0: not found.
struct CudaVersions {
  int driver = 0;   // The newest CUDA that the driver supports.
  int runtime = 0;  // Version of the runtime library.
  int devices = 0;
  std::vector<std::string> names = {};              // Name of each device.
  std::string driver_error = {};                    // Why `devices` could not be counted.
  std::optional<std::string> visible_devices = {};  // CUDA_VISIBLE_DEVICES, if it is set.
};

// The versions in this process. Maps libcuda.so.1 if there is a driver. The runtime is LibTorch's,
// in programs that link it.
CudaVersions ReadCudaVersions();

// FailedPrecondition with one line that gives the cause and the remedy: no driver, a driver older
// than the runtime (naming both versions), or no GPU. Pure.
absl::Status CheckCudaVersions(const CudaVersions& versions);

// "13.0".
std::string CudaVersionText(int number);

}  // namespace dtrain
