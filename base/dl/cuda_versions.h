// Whether CUDA can be used here at all: what its driver and its runtime say of themselves, and what
// is wrong where it cannot. The one place that decides it, for ranks, benchmarks and the doctor.
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
  int driver = 0;   // The newest that it serves.
  int runtime = 0;  // Of the libraries that compute.
  int devices = 0;
  std::vector<std::string> names = {};              // Of each.
  std::string driver_error = {};                    // Why `devices` could not be counted.
  std::optional<std::string> visible_devices = {};  // CUDA_VISIBLE_DEVICES, where it is set.
};

// Of this process, which maps libcuda.so.1 by it where there is a driver. The runtime's is
// LibTorch's, in programs that have it.
CudaVersions ReadCudaVersions();

// FailedPrecondition, one line with the cause that holds and what to do about it: no driver, a
// driver older than the runtime (naming both versions), or no GPU. Pure.
absl::Status CheckCudaVersions(const CudaVersions& versions);

// "13.0".
std::string CudaVersionText(int number);

}  // namespace dtrain
