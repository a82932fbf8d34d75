#include "bench/mfu/cuda_versions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace dtrain::bench {
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

TEST(CudaVersions, ADriverOlderThanTheRuntimeNamesBoth) {
  const std::string message = Message({.driver = 12040, .runtime = 13000, .devices = 8});
  EXPECT_THAT(message, HasSubstr("driver knows CUDA 12.4"));
  EXPECT_THAT(message, HasSubstr("runtime is CUDA 13.0"));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(CudaVersions, ADriverWithoutAGpuSaysSo) {
  EXPECT_THAT(Message({.driver = 13000, .runtime = 13000}), HasSubstr("shows no GPU"));
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
}  // namespace dtrain::bench
