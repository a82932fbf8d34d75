#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/cuda_launch.h"

namespace dtrain::kernels {

void RequireStream(CudaStream stream) {
  DT_CHECK(stream != nullptr) << " a kernel was launched on the default stream";
}

absl::Status LaunchStatus(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("launch of ", kernel, ": ", cudaGetErrorName(error), ": ",
                                          cudaGetErrorString(error)));
}

}  // namespace dtrain::kernels
