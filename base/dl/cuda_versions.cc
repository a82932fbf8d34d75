#include "base/dl/cuda_versions.h"

#include "absl/strings/str_format.h"
#include "base/dl/dynamic_library.h"
#include "base/job_env.h"

namespace dtrain {

std::string CudaVersionText(int number) {
  return absl::StrFormat("%d.%d", number / 1000, number % 1000 / 10);
}

CudaVersions ReadCudaVersions() {
  CudaVersions versions;
  const Environment environment = ReadEnvironment();
  if (const auto shown = environment.find("CUDA_VISIBLE_DEVICES"); shown != environment.end()) {
    versions.visible_devices = shown->second;
  }
  // One of LibTorch's own dependencies; its CPU half links it, so it is mapped already.
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
    return absl::FailedPreconditionError(
        absl::StrFormat("no NVIDIA driver here (%s); use a machine on which nvidia-smi lists a "
                        "GPU, or start the container with its GPUs",
                        versions.driver_error));
  }
  const std::string driver = CudaVersionText(versions.driver);
  // A driver supports newer runtimes of its major version.
  if (versions.driver / 1000 < versions.runtime / 1000) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the driver knows CUDA %s and the runtime is CUDA %s; install a driver for CUDA %d, or "
        "dtrain and LibTorch for CUDA %d",
        driver, CudaVersionText(versions.runtime), versions.runtime / 1000,
        versions.driver / 1000));
  }
  if (versions.devices > 0) {
    return absl::OkStatus();
  }
  const std::string why =
      versions.driver_error.empty() ? "" : absl::StrFormat(" (%s)", versions.driver_error);
  return absl::FailedPreconditionError(
      versions.visible_devices.has_value()
          ? absl::StrFormat("the driver (CUDA %s) shows no GPU%s: CUDA_VISIBLE_DEVICES is \"%s\"; "
                            "unset it, or name GPUs that nvidia-smi -L lists",
                            driver, why, *versions.visible_devices)
          : absl::StrFormat("the driver (CUDA %s) shows no GPU%s; run nvidia-smi to see why",
                            driver, why));
}

}  // namespace dtrain
