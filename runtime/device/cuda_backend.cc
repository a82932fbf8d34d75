#include "runtime/device/cuda_backend.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <string>

#include "ATen/Context.h"
#include "absl/strings/str_cat.h"
#include "base/dl/dynamic_library.h"
#include "base/file.h"
#include "base/job_env.h"
#include "base/status.h"
#include "c10/core/AllocatorConfig.h"
#include "c10/core/CachingDeviceAllocator.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "kernels/cuda/cuda_table.h"
#include "runtime/device/allocator_settings.h"
#include "runtime/device/device_image.h"
#include "runtime/device/plugin/torch_plugin.h"

namespace dtrain {
namespace {

// The folder from which LibTorch's CPU half was loaded: its CUDA half lies beside it.
std::string LibTorchFolder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&at::globalContext), &info) == 0) {
    return "";
  }
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/'));
}

absl::Status MapLibTorchCuda(comm::CudaApi& api) {
  // cuBLAS then has a workspace a stream, without which its sums may change from run to run.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  DT_ASSIGN_OR_RETURN(auto library,
                      DynamicLibrary::Open({absl::StrCat(LibTorchFolder(), "/libtorch_cuda.so")}));
  library.LeakOnPurpose();  // Its registrations stay.
  if (!at::hasCUDA()) {
    return absl::FailedPreconditionError(
        "LibTorch finds no CUDA although its CUDA library is mapped: the program asked LibTorch "
        "about CUDA before dtrain::Main; ask after it, or set device to \"cpu\"");
  }
  if (const std::string settings = AllocatorSettings(api, ReadEnvironment()); !settings.empty()) {
    c10::CachingAllocator::setAllocatorSettings(settings);
  }
  return absl::OkStatus();
}

// libdtrain_torch_cuda.so from the folder of `plugin`.
absl::StatusOr<const TorchPluginTable*> OpenTorchPlugin(const comm::Plugin& plugin) {
  const std::string folder = plugin.path().substr(0, plugin.path().rfind('/'));
  DT_ASSIGN_OR_RETURN(auto library,
                      DynamicLibrary::Open({absl::StrCat(folder, "/", kTorchPluginFile)}));
  TorchPluginEntry* entry = nullptr;
  DT_RETURN_IF_ERROR(library.Bind(kTorchPluginSymbol, &entry));
  library.LeakOnPurpose();
  const TorchPluginTable* const table = entry();
  if (absl::string_view(table->version) != plugin.version()) {
    return absl::FailedPreconditionError(
        absl::StrCat(library.name(), " is of build ", table->version, "; this program is of build ",
                     plugin.version(), ": build both from one tree"));
  }
  return table;
}

// Opened when the first graph is wanted: a run without graphs needs no second plugin.
MakeTensorGraph GraphsOf(const comm::Plugin* plugin, int index) {
  return [plugin, index]() -> absl::StatusOr<std::unique_ptr<TensorGraph>> {
    static const absl::StatusOr<const TorchPluginTable*> table = OpenTorchPlugin(*plugin);
    DT_RETURN_IF_ERROR(table.status());
    return (*table)->new_graph(index);
  };
}

}  // namespace

GpuFacts FindGpus(int local_rank) {
  GpuFacts facts{.local_rank = local_rank};
  facts.driver = FileExists("/dev/nvidiactl") || FileExists("/dev/dxg");
  if (!facts.driver) {
    return facts;
  }
  const auto plugin = comm::OpenCudaPlugin();
  if (!plugin.ok()) {
    facts.why_none = std::string(plugin.status().message());
    return facts;
  }
  const auto count = (*plugin)->DeviceCount();
  facts.gpus = count.value_or(0);
  if (!count.ok()) {
    facts.why_none = WhyNoGpu(count.status(), ReadCudaVersions());
  }
  return facts;
}

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int index) {
  DT_ASSIGN_OR_RETURN(comm::Plugin* const plugin, comm::OpenCudaPlugin());
  CudaParts parts;
  parts.api = &plugin->cuda();
  parts.kernels = kernels::AsCudaKernelTable(plugin->kernel_table());
  parts.index = index;
  parts.new_graph = GraphsOf(plugin, index);
  parts.tensors = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index));
  parts.empty_cache = [] { at::getDeviceAllocator(at::kCUDA)->emptyCache(); };
  // Before LibTorch's half is mapped: what cannot train here says so at once.
  if (const absl::Status image = CheckDeviceImage(*parts.api, *parts.kernels, index); !image.ok()) {
    return absl::Status(image.code(), absl::StrCat(image.message(), "; or set device to \"cpu\""));
  }
  DT_RETURN_IF_ERROR(MapLibTorchCuda(*parts.api));
  try {
    at::globalContext().lazyInitDevice(at::kCUDA);
    const c10::impl::VirtualGuardImpl guard(at::kCUDA);
    guard.setDevice(parts.tensors);
    // The default stream would wait for every other one.
    const c10::Stream stream = guard.getStreamFromGlobalPool(parts.tensors);
    guard.exchangeStream(stream);
    parts.compute_stream = static_cast<comm::CudaStream*>(guard.getStreamNativeHandle(stream));
  } catch (const std::exception& error) {  // LibTorch's: nothing of the engine runs yet.
    const std::string text = error.what();
    return absl::FailedPreconditionError(absl::StrCat("LibTorch cannot use GPU ", index, ": ",
                                                      text.substr(0, text.find('\n')), " (",
                                                      parts.api->Description(), ")"));
  }
  if (parts.api->SetDevice(index) != comm::CudaResult::kSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat("GPU ", index, " cannot be used (", parts.api->Description(), ")"));
  }
  comm::CudaDeviceFacts facts;
  if (parts.api->DeviceFacts(index, &facts) == comm::CudaResult::kSuccess) {
    parts.description = absl::StrCat(facts.name, ", ", parts.api->Description(), ", allocator ",
                                     c10::CachingAllocator::getAllocatorSettings());
  }
  return std::make_unique<Device>(std::move(parts));
}

absl::StatusOr<comm::CudaDeviceFacts> FactsOf(const Device& device) {
  comm::CudaDeviceFacts facts;
  DT_RETURN_IF_ERROR(device.Check(device.api().DeviceFacts(device.place().index, &facts),
                                  "cudaGetDeviceProperties"));
  return facts;
}

}  // namespace dtrain
