#include "runtime/ops/device_kernels.h"

#include <string>

#include "base/log.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "c10/util/Exception.h"
#include "comm/nccl/plugin.h"
#include "runtime/ops/device_matmul.h"

namespace dtrain::ops {
namespace {

struct StandIn {
  const kernels::CudaKernelTable* kernels = nullptr;
  CudaStream stream = nullptr;
};

StandIn& ForTesting() {
  static StandIn stand_in;
  return stand_in;
}

// Null: the plugin does not open.
const kernels::CudaKernelTable* PluginKernels() {
  static const kernels::CudaKernelTable* const table = []() -> const kernels::CudaKernelTable* {
    const auto plugin = comm::OpenCudaPlugin();
    if (!plugin.ok()) {
      DT_LOG(Warning) << "fused operations on a GPU take ATen's: " << plugin.status().message();
      return nullptr;
    }
    return kernels::AsCudaKernelTable((*plugin)->kernel_table());
  }();
  return table;
}

// Of the calling thread. The default stream has a handle too (cudaStreamLegacy), so that a program
// that computes on it stays in order.
CudaStream CurrentStream(const at::Device& device) {
  constexpr uintptr_t kDefaultStream = 1;
  const c10::impl::VirtualGuardImpl guard(device.type());
  void* const handle = guard.getStreamNativeHandle(guard.getStream(device));
  return reinterpret_cast<CudaStream>(
      handle != nullptr ? handle
                        : reinterpret_cast<void*>(kDefaultStream));  // NOLINT: CUDA's own value.
}

}  // namespace

bool HasKernels(const at::Device& device) {
  return device.is_cpu() || (device.is_cuda() && PluginKernels() != nullptr);
}

bool OnGpu(const at::Tensor& tensor) { return tensor.is_cuda() || ForTesting().kernels != nullptr; }

bool LaunchesOn(const at::Tensor& tensor, CudaStream stream) {
  if (ForTesting().kernels != nullptr) {
    return ForTesting().stream == stream;
  }
  return !tensor.is_cuda() || CurrentStream(tensor.device()) == stream;
}

GpuLaunch::GpuLaunch(const at::Tensor& tensor) {
  if (ForTesting().kernels != nullptr) {
    kernels_ = ForTesting().kernels;
    stream_ = ForTesting().stream;
    return;
  }
  guard_.reset_device(tensor.device());
  kernels_ = PluginKernels();
  stream_ = CurrentStream(tensor.device());
}

void ThrowUnlessOk(const absl::Status& status) {
  TORCH_CHECK(status.ok(), std::string(status.message()));
}

void SetGpuForTesting(const kernels::CudaKernelTable* kernels, CudaStream stream) {
  ForTesting() = {kernels, stream};
  ForgetDeviceMatmuls();
}

}  // namespace dtrain::ops
