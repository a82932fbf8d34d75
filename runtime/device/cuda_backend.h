// Opens CUDA for a rank that trains on a GPU: the plugin, the CUDA half of LibTorch, a compute
// stream. A rank that trains on the CPU calls FindGpus at most, and maps no CUDA library unless the
// machine has a driver.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "comm/nccl/plugin.h"
#include "runtime/device/choose_device.h"
#include "runtime/device/device.h"

namespace dtrain {

// The GPUs of this machine. Opens the CUDA plugin only when a driver is loaded.
GpuFacts FindGpus(int local_rank);

// The GPU `index` of this process: LibTorch's CUDA libraries are mapped from the folder of its CPU
// ones, and a stream of its pool becomes the current one of the calling thread, which must be the
// thread that trains. FailedPrecondition when LibTorch was asked for CUDA before (it then believes
// for ever that there is none), or cannot use the GPU.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int index);

// The facts of the GPU `device`.
absl::StatusOr<comm::CudaDeviceFacts> FactsOf(const Device& device);

}  // namespace dtrain
