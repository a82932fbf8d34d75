// The CUDA kernels themselves, on the emulated device (tests/device_emulation), as the fake GPU's:
// what the engine and the operations launch on a GPU, with a GPU's arguments.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_table.h"

namespace dtrain::testing {

// Puts them into `table`, but for matrix products; false where the build has no emulated device:
// without CUDA's headers, and under ThreadSanitizer.
bool PutEmulatedKernels(kernels::CudaKernelTable& table);
// Kernels, fills and copies that they gave to the emulated device so far; 0 without one.
int64_t EmulatedLaunches();

}  // namespace dtrain::testing
