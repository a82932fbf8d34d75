// A device for which the build has no code, as a GPU of another architecture is.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "kernels/cuda/device_image.h"
#include "kernels/flat.h"
#include "tests/device_emulation/device.h"

namespace dtrain::kernels::kernel_image_test {
namespace {

absl::Status Fill(float* out, cudaStream_t stream) {
  return FillCuda(1, 3, {out, DType::kFloat32}, stream);
}

TEST(KernelImage, ADeviceWithoutCodeIsFoundBeforeALaunchFailsThere) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  float out = 0;
  EXPECT_TRUE(CheckDeviceImageCuda().ok());
  emulation::SetImageError(cudaErrorNoKernelImageForDevice);
  const absl::Status status = CheckDeviceImageCuda();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("cudaErrorNoKernelImageForDevice"), absl::string_view::npos);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "it was told";
  EXPECT_FALSE(Fill(&out, stream).ok());
  EXPECT_FALSE(CheckDeviceImageCuda().ok());
  emulation::SetImageError(cudaSuccess);
  EXPECT_TRUE(Fill(&out, stream).ok()) << "a launch is not to blame for what was asked before";
  EXPECT_EQ(out, 3);
  EXPECT_TRUE(CheckDeviceImageCuda().ok());
}

}  // namespace
}  // namespace dtrain::kernels::kernel_image_test
