// The device that --device names, or in one line why it cannot be used here.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "absl/status/status.h"
#include "dtrain/job.h"

namespace dtrain::bench {

struct BenchDevice {
  at::Device device = at::kCPU;
  std::string name;  // "NVIDIA H100 80GB HBM3", "AMD EPYC 9354 32-Core Processor".
};

// FailedPrecondition: no driver or GPU, or a driver older than the CUDA runtime that LibTorch is
// built for (both versions are named). Call it before a job takes the device, so that this is the
// only message.
absl::Status CheckDevice(const std::string& name);

// The device that the job trains on.
BenchDevice DeviceOf(const Job& job);

}  // namespace dtrain::bench
