// A GPU that dtrain's kernels are not built for, over the fakes: LibTorch's operations take their
// place by name, and a training says so before it begins.
#include "runtime/device/device_image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "ATen/ATen.h"
#include "dtrain/ops.h"
#include "runtime/device/device.h"
#include "runtime/ops/device_kernels.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/fake_op_kernels.h"

namespace dtrain::device_image_test {
namespace {

using ::testing::HasSubstr;

class DeviceImageTest : public ::testing::Test {
 protected:
  DeviceImageTest() : table_(*testing::FakeKernelTable(&cuda_)) {
    cuda_.SetName("NVIDIA X9000");
    table_.check_device_image = [] {
      return absl::FailedPreconditionError("cudaErrorNoKernelImageForDevice: no kernel image");
    };
  }
  void TearDown() override { ops::SetGpuForTesting(nullptr, nullptr); }
  comm::FakeCuda cuda_;
  kernels::CudaKernelTable table_;
};

TEST_F(DeviceImageTest, TheErrorNamesTheGpuAndTheSettingThatAddsIt) {
  const absl::Status status = CheckDeviceImage(cuda_, table_, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("not built for GPU 0, NVIDIA X9000 (sm_90): "
                        "cudaErrorNoKernelImageForDevice: no kernel image; add 90-real to "
                        "DTRAIN_CUDA_ARCHITECTURES"));
  EXPECT_TRUE(CheckDeviceImage(cuda_, *testing::FakeKernelTable(&cuda_), 0).ok());
}

TEST_F(DeviceImageTest, OperationsTakeAtensAndSayItOnce) {
  const at::Tensor x = at::randn({8, 16});
  const at::Tensor weight = at::ones({16});
  const auto outcome = [&] {
    return at::cat({ops::RmsNorm(x, weight, 1e-5), ops::Gelu(x, ops::GeluForm::kTanh)});
  };
  const at::Tensor expected = outcome();
  ::testing::internal::CaptureStderr();
  ops::SetGpuForTesting(&table_, Device::KernelStream(cuda_.host_stream()), &cuda_);
  const int before = testing::FakeKernelLaunches();
  const at::Tensor got = outcome();
  EXPECT_TRUE(at::allclose(got, expected, 1e-5, 1e-6));
  EXPECT_FALSE(ops::HasKernels(at::kCPU)) << "where tensors of the host stand for a GPU's";
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(testing::FakeKernelLaunches(), before);
  EXPECT_THAT(log, HasSubstr("fused operations on a GPU take ATen's: dtrain's kernels are not "
                             "built for GPU 0, NVIDIA X9000"));
  EXPECT_EQ(log.find("take ATen's"), log.rfind("take ATen's")) << log;
}

}  // namespace
}  // namespace dtrain::device_image_test
