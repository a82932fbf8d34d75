// Whether CUDA can be used here at all: what its driver and LibTorch's runtime say of themselves.
// Free of LibTorch and of CUDA's headers; both libraries are opened by name.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace dtrain::bench {

// CUDA's version numbers (13000: 13.0); 0: not found.
struct CudaVersions {
  int driver = 0;
  int runtime = 0;
  int devices = 0;
  std::vector<std::string> names = {};  // Of each.
  std::string driver_error = {};        // Why `devices` could not be counted.
};

CudaVersions ReadCudaVersions();

// FailedPrecondition, in one line that begins with --device cuda: no driver, a driver older than
// the runtime (naming both versions), or no GPU.
absl::Status CheckCudaVersions(const CudaVersions& versions);

}  // namespace dtrain::bench
