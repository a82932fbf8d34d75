// The fused operations' CUDA kernels as host loops of the fake GPU (fake_device.h).
#pragma once

#include <functional>

#include "kernels/cuda/cuda_table.h"

namespace dtrain::testing {

// Queues `operation` on a stream of the process's FakeCuda and counts it.
absl::Status QueueFakeKernel(CudaStream stream, std::function<void()> operation);
// How many have been queued so far.
int FakeKernelLaunches();

// Matrix products that were launched so far; of them, those that add to what is there (beta = 1),
// those that write or add to fp32, and those that keep GELU's input.
struct FakeMatmulLaunches {
  int all = 0;
  int adding = 0;
  int into_fp32 = 0;
  int keeping_gelu_input = 0;
};
FakeMatmulLaunches FakeMatmuls();

// Adds to `table` what the fused operations launch: the CPU's kernels.
void AddFakeOperationKernels(kernels::CudaKernelTable& table);

}  // namespace dtrain::testing
