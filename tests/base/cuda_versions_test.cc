#include "base/dl/cuda_versions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace dtrain::cuda_versions_test {
namespace {

using ::testing::HasSubstr;

std::string Message(const CudaVersions& versions) {
  return std::string(CheckCudaVersions(versions).message());
}

TEST(CudaVersions, ADriverAsNewAsTheRuntimeWithAGpuIsFine) {
  EXPECT_TRUE(CheckCudaVersions({.driver = 13010, .runtime = 13000, .devices = 1}).ok());
  EXPECT_TRUE(CheckCudaVersions({.driver = 13000, .runtime = 13010, .devices = 1}).ok());
}

TEST(CudaVersions, NoDriverIsSaidWithWhatWasTried) {
  const CudaVersions none{.runtime = 13000, .driver_error = "libcuda.so.1: cannot open"};
  EXPECT_THAT(Message(none), HasSubstr("no NVIDIA driver here (libcuda.so.1: cannot open)"));
  EXPECT_EQ(CheckCudaVersions(none).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(CudaVersions, ADriverOlderThanTheRuntimeNamesBothAndWhatToInstall) {
  // The same if CUDA_VISIBLE_DEVICES hides the GPUs: the error names the first thing that has to
  // change.
  for (const int devices : {0, 8}) {
    EXPECT_EQ(Message({.driver = 12040,
                       .runtime = 13000,
                       .devices = devices,
                       .driver_error = "cuInit gave error 100",
                       .visible_devices = ""}),
              "the driver knows CUDA 12.4 and the runtime is CUDA 13.0; install a driver for CUDA "
              "13, or dtrain and LibTorch for CUDA 12");
  }
}

TEST(CudaVersions, HiddenGpusAreTheVariablesFaultOnlyWhereItIsSet) {
  EXPECT_EQ(Message({.driver = 13000, .runtime = 13000, .visible_devices = ""}),
            "the driver (CUDA 13.0) shows no GPU: CUDA_VISIBLE_DEVICES is \"\"; unset it, or name "
            "GPUs that nvidia-smi -L lists");
  EXPECT_EQ(
      Message({.driver = 13000, .runtime = 13000, .driver_error = "cuInit gave error 803"}),
      "the driver (CUDA 13.0) shows no GPU (cuInit gave error 803); run nvidia-smi to see why");
}

TEST(CudaVersions, AnUnknownRuntimeIsNotHeldAgainstTheDriver) {
  EXPECT_TRUE(CheckCudaVersions({.driver = 12040, .devices = 1}).ok());
}

TEST(CudaVersions, ReadingNeverFailsAndAgreesWithItself) {
  const CudaVersions here = ReadCudaVersions();
  if (here.devices > 0) {
    EXPECT_GT(here.driver, 0);
  } else {
    EXPECT_FALSE(CheckCudaVersions(here).ok());
  }
}

}  // namespace
}  // namespace dtrain::cuda_versions_test
