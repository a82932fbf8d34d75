#include "bench/mfu/cuda_versions.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/dl/dynamic_library.h"

namespace dtrain::bench {
namespace {

std::string Version(int number) {
  return absl::StrFormat("%d.%d", number / 1000, number % 1000 / 10);
}

}  // namespace

CudaVersions ReadCudaVersions() {
  CudaVersions versions;
  // Of LibTorch's own dependencies; the CPU half links it, so it is mapped already.
  if (const auto runtime = DynamicLibrary::Open({"libcudart.so.13", "libcudart.so.12"});
      runtime.ok()) {
    int (*get)(int*) = nullptr;  // cudaRuntimeGetVersion; 0: cudaSuccess.
    if (runtime->Bind("cudaRuntimeGetVersion", &get).ok()) {
      get(&versions.runtime);
    }
  }
  auto driver = DynamicLibrary::Open({"libcuda.so.1"});
  if (!driver.ok()) {
    versions.driver_error = std::string(driver.status().message());
    return versions;
  }
  // CUDA Driver API: CUresult f(...), 0 on success.
  int (*initialise)(unsigned) = nullptr;
  int (*get_version)(int*) = nullptr;
  int (*get_count)(int*) = nullptr;
  int (*get_device)(int*, int) = nullptr;
  int (*get_name)(char*, int, int) = nullptr;
  for (const absl::Status& bound :
       {driver->Bind("cuInit", &initialise), driver->Bind("cuDriverGetVersion", &get_version),
        driver->Bind("cuDeviceGetCount", &get_count), driver->Bind("cuDeviceGet", &get_device),
        driver->Bind("cuDeviceGetName", &get_name)}) {
    if (!bound.ok()) {
      versions.driver_error = std::string(bound.message());
      return versions;
    }
  }
  driver->LeakOnPurpose();
  get_version(&versions.driver);  // Works without cuInit.
  if (const int error = initialise(0); error != 0) {
    versions.driver_error = absl::StrFormat("cuInit gave error %d", error);
  } else if (const int failed = get_count(&versions.devices); failed != 0) {
    versions.driver_error = absl::StrFormat("cuDeviceGetCount gave error %d", failed);
  }
  for (int i = 0; i < versions.devices; ++i) {
    char name[256] = {};
    int device = 0;
    if (get_device(&device, i) == 0) {
      get_name(name, sizeof(name), device);
    }
    versions.names.emplace_back(name);
  }
  return versions;
}

absl::Status CheckCudaVersions(const CudaVersions& versions) {
  if (versions.driver == 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "--device cuda: no NVIDIA driver here (%s); use --device cpu, or a machine on which "
        "nvidia-smi lists a GPU",
        versions.driver_error));
  }
  if (versions.runtime > 0 && versions.driver / 1000 < versions.runtime / 1000) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "--device cuda: the driver knows CUDA %s, LibTorch's runtime is CUDA %s; install a driver "
        "for CUDA %d or a LibTorch for CUDA %d",
        Version(versions.driver), Version(versions.runtime), versions.runtime / 1000,
        versions.driver / 1000));
  }
  if (versions.devices == 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "--device cuda: the driver (CUDA %s) shows no GPU%s; look at nvidia-smi and "
        "CUDA_VISIBLE_DEVICES",
        Version(versions.driver),
        versions.driver_error.empty() ? "" : ": " + versions.driver_error));
  }
  return absl::OkStatus();
}

}  // namespace dtrain::bench
