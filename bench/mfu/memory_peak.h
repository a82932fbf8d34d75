// The most memory that a rank held: a process's on a CPU, the device's on a GPU.
#pragma once

#include "runtime/device/device.h"

namespace dtrain::bench {

// From here on the peak counts anew. A kernel that does not let it be reset gives too much.
void ResetMemoryPeak(const Device& device);

// Bytes. On a GPU what is in use now, CUDA's context and other processes' memory included, and what
// LibTorch's allocator held more at its peak. 0 if the device does not say.
double MemoryPeakBytes(const Device& device);

}  // namespace dtrain::bench
