// The last error of the emulated CUDA runtime: a launch sets it, cudaGetLastError takes it.
#pragma once

#include <driver_types.h>

namespace dtrain::emulation {

void SetLastError(cudaError error);

}  // namespace dtrain::emulation
