// The device that --device names, or in one line why it cannot be used here.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "absl/status/statusor.h"

namespace dtrain::bench {

struct BenchDevice {
  at::Device device = at::kCPU;
  std::string name;  // "NVIDIA H100 80GB HBM3", "AMD EPYC 9354 32-Core Processor".
};

// FailedPrecondition: no driver or GPU, or a driver older than the CUDA runtime that LibTorch is
// built for (both versions are named). Unimplemented: what the engine cannot do there.
absl::StatusOr<BenchDevice> ChooseDevice(const std::string& name, int local_rank);

}  // namespace dtrain::bench
