#include "runtime/ops/device_kernels.h"

#include <string>

#include "absl/strings/string_view.h"
#include "base/log.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "c10/util/Exception.h"
#include "comm/nccl/plugin.h"
#include "runtime/device/device_image.h"
#include "runtime/ops/device_matmul.h"
#include "runtime/ops/made_once.h"

namespace dtrain::ops {
namespace {

struct StandIn {
  const kernels::CudaKernelTable* kernels = nullptr;
  CudaStream stream = nullptr;
  comm::CudaApi* api = nullptr;
  bool usable = false;
};

StandIn& ForTesting() {
  static StandIn stand_in;
  return stand_in;
}

void WarnOfAten(absl::string_view why) {
  DT_LOG(Warning) << "fused operations on a GPU take ATen's: " << why;
}

// Null: the plugin does not open.
comm::Plugin* ThePlugin() {
  static comm::Plugin* const plugin = []() -> comm::Plugin* {
    const auto opened = comm::OpenCudaPlugin();
    if (!opened.ok()) {
      WarnOfAten(opened.status().message());
      return nullptr;
    }
    return *opened;
  }();
  return plugin;
}

bool IsUsable(comm::CudaApi& api, const kernels::CudaKernelTable& kernels, int index) {
  const absl::Status image = CheckDeviceImage(api, kernels, index);
  if (!image.ok()) {
    WarnOfAten(image.message());
  }
  return image.ok();
}

// Null: the plugin does not open, or has no code for this GPU, which is asked once.
const kernels::CudaKernelTable* PluginKernels(const at::Device& device) {
  using Table = const kernels::CudaKernelTable*;
  static auto* const known = new MadeOnce<int, Table>();
  return known->Get(device.index(), [&]() -> Table {
    comm::Plugin* const plugin = ThePlugin();
    if (plugin == nullptr) {
      return nullptr;
    }
    const c10::DeviceGuard guard(device);
    const Table table = kernels::AsCudaKernelTable(plugin->kernel_table());
    return IsUsable(plugin->cuda(), *table, device.index()) ? table : nullptr;
  });
}

// The calling thread's. The default stream has a handle too (cudaStreamLegacy), so that a program
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
  if (ForTesting().kernels != nullptr) {
    return ForTesting().usable;
  }
  return device.is_cpu() || (device.is_cuda() && PluginKernels(device) != nullptr);
}

bool OnGpu(const at::Tensor& tensor) { return tensor.is_cuda() || ForTesting().kernels != nullptr; }

bool LaunchesOn(const at::Tensor& tensor, CudaStream stream) {
  if (ForTesting().kernels != nullptr) {
    return ForTesting().stream == stream;
  }
  return !tensor.is_cuda() || CurrentStream(tensor.device()) == stream;
}

bool IsCaptured(CudaStream stream) {
  comm::CudaApi* const api =
      ForTesting().kernels != nullptr ? ForTesting().api : &ThePlugin()->cuda();
  if (api == nullptr) {
    return false;
  }
  bool captured = false;
  const comm::CudaResult asked =
      api->StreamIsCapturing(reinterpret_cast<comm::CudaStream*>(stream), &captured);
  return captured || asked != comm::CudaResult::kSuccess;
}

GpuLaunch::GpuLaunch(const at::Tensor& tensor) {
  if (ForTesting().kernels != nullptr) {
    kernels_ = ForTesting().kernels;
    stream_ = ForTesting().stream;
    return;
  }
  guard_.reset_device(tensor.device());
  kernels_ = PluginKernels(tensor.device());
  stream_ = CurrentStream(tensor.device());
}

void ThrowUnlessOk(const absl::Status& status) {
  TORCH_CHECK(status.ok(), std::string(status.message()));
}

void SetGpuForTesting(const kernels::CudaKernelTable* kernels, CudaStream stream,
                      comm::CudaApi* api) {
  ForTesting() = {.kernels = kernels, .stream = stream, .api = api};
  ForTesting().usable =
      kernels != nullptr && (api == nullptr || IsUsable(*api, *kernels, /*index=*/0));
  ForgetDeviceMatmuls();
}

}  // namespace dtrain::ops
