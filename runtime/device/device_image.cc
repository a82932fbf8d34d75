#include "runtime/device/device_image.h"

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "comm/nccl/nccl_status.h"

namespace dtrain {

absl::Status CheckDeviceImage(comm::CudaApi& api, const kernels::CudaKernelTable& kernels,
                              int index) {
  DT_RETURN_IF_ERROR(comm::CudaStatus(api, api.SetDevice(index), "cudaSetDevice"));
  const absl::Status image = kernels.check_device_image();
  if (image.ok()) {
    return image;
  }
  comm::CudaDeviceFacts facts;
  DT_RETURN_IF_ERROR(
      comm::CudaStatus(api, api.DeviceFacts(index, &facts), "cudaGetDeviceProperties"));
  return absl::FailedPreconditionError(absl::StrFormat(
      "dtrain's kernels are not built for GPU %d, %s (sm_%d): %s; add %d-real to "
      "DTRAIN_CUDA_ARCHITECTURES and build again",
      index, facts.name, facts.compute_capability, image.message(), facts.compute_capability));
}

}  // namespace dtrain
