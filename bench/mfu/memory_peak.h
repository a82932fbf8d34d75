// The most memory that a rank held: a process's on a CPU, the device's on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtrain/metrics.h"

namespace dtrain::bench {

// From here on the peak counts anew. A kernel that does not let it be reset gives too much.
void ResetMemoryPeak(const at::Device& device);

// Bytes. On a GPU what LibTorch's allocator held at most, plus the flat buffers of `report`'s
// engine, which are not its own; CUDA's context is not counted.
double MemoryPeakBytes(const at::Device& device, const MemoryReport& report);

}  // namespace dtrain::bench
