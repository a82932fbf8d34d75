#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "kernels/cuda/cuda_launch.h"
#include "kernels/cuda/device_image.h"

namespace dtrain::kernels {
namespace {

// Compiled for what all kernels are, and never launched.
__global__ void ImageKernel() {}

absl::Status ErrorOf(absl::StatusCode code, absl::string_view what, cudaError_t error) {
  return absl::Status(code,
                      absl::StrCat(what, cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
}

}  // namespace

absl::Status CheckDeviceImageCuda() {
  // Kernels are loaded when they are first asked for, and this asks.
  cudaFuncAttributes attributes{};
  const cudaError_t error =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(ImageKernel));
  if (error == cudaSuccess) {
    return absl::OkStatus();
  }
  (void)cudaGetLastError();  // Said here: the next launch is not to blame.
  return ErrorOf(absl::StatusCode::kFailedPrecondition, "", error);
}

void RequireStream(CudaStream stream) {
  DT_CHECK(stream != nullptr) << " a kernel was launched on the default stream";
}

absl::Status LaunchStatus(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) {
    return absl::OkStatus();
  }
  return ErrorOf(absl::StatusCode::kInternal, absl::StrCat("launch of ", kernel, ": "), error);
}

}  // namespace dtrain::kernels
