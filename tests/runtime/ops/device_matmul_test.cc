// The products that cublasLt is asked for, over the fake GPU's table, and the log line where it has
// no algorithm.
#include "runtime/ops/device_matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "ATen/ATen.h"
#include "runtime/ops/device_kernels.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/fake_op_kernels.h"

namespace dtrain::ops::device_matmul_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

at::Tensor Bf16(at::IntArrayRef sizes) { return at::randn(sizes).to(at::kBFloat16); }

class DeviceMatmulTest : public ::testing::Test {
 protected:
  DeviceMatmulTest() { Use(dtrain::testing::FakeKernelTable(&cuda_)); }
  void TearDown() override {
    SetGpuForTesting(nullptr, nullptr);
    EXPECT_THAT(cuda_.violations(), IsEmpty());
  }
  void Use(const kernels::CudaKernelTable* table) {
    SetGpuForTesting(table, Device::KernelStream(cuda_.host_stream()));
  }
  // Whether the product is taken. Nothing may be written to the log.
  static bool Takes(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                    const DeviceMatmulOptions& options) {
    ::testing::internal::CaptureStderr();
    const int before = dtrain::testing::FakeMatmuls().all;
    const bool takes = DeviceMatmul(out, a, b, options);
    EXPECT_EQ(dtrain::testing::FakeMatmuls().all - before, takes ? 1 : 0);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    return takes;
  }
  comm::FakeCuda cuda_;
};

TEST_F(DeviceMatmulTest, TakesABiasOfTheResultsWidthAlone) {
  const at::Tensor out = Bf16({5, 8});
  const auto takes = [&](const at::Tensor& bias) {
    return Takes(out, Bf16({5, 16}), Bf16({16, 8}), {.bias = bias});
  };
  EXPECT_TRUE(takes(Bf16({8})));
  EXPECT_FALSE(takes(Bf16({1})));
  EXPECT_FALSE(takes(Bf16({7})));
  EXPECT_FALSE(takes(Bf16({16})));
  EXPECT_FALSE(takes(Bf16({1, 8})));
}

TEST_F(DeviceMatmulTest, GeluWithWhatDoesNotFitIsLeftToAtenQuietly) {
  const auto takes = [](const at::Tensor& out, const DeviceMatmulOptions& options) {
    return Takes(out, Bf16({5, 16}), Bf16({16, out.size(1)}), options);
  };
  const at::Tensor out = Bf16({5, 8});
  const at::Tensor bias = Bf16({8});
  const at::Tensor input = Bf16({5, 8});
  constexpr MatmulGelu kForward = MatmulGelu::kForward;
  constexpr MatmulGelu kBackward = MatmulGelu::kBackward;
  EXPECT_TRUE(takes(out, {.bias = bias, .gelu = kForward, .gelu_input = input}));
  EXPECT_TRUE(takes(out, {.bias = bias, .gelu = kForward})) << "nobody wants GELU's input";
  EXPECT_TRUE(takes(out, {.gelu = kBackward, .gelu_input = input}));
  EXPECT_FALSE(takes(out, {.gelu = kBackward}));
  EXPECT_FALSE(takes(out, {.bias = bias, .gelu = kBackward, .gelu_input = input}));
  EXPECT_FALSE(takes(out, {.gelu_input = input}));
  // Rows of fp32 may end at 16 bytes where cublasLt's of GELU's input may not.
  const at::Tensor wide = at::randn({5, 12});
  const DeviceMatmulOptions kept{.gelu = kForward, .gelu_input = at::randn({5, 12})};
  EXPECT_FALSE(Takes(wide, Bf16({5, 16}), Bf16({12, 16}).t(), kept));
}

TEST_F(DeviceMatmulTest, GelusInputIsNotOfFp8) {
  const at::Tensor a = at::randn({16, 32}).to(at::kFloat8_e4m3fn);
  const at::Tensor b = at::randn({16, 32}).to(at::kFloat8_e4m3fn);
  const at::Tensor out = Bf16({16, 16});
  const at::Tensor scale = at::ones({});
  EXPECT_TRUE(Takes(out, a, b.t(), {.a_scale = scale, .b_scale = scale}));
  EXPECT_FALSE(Takes(out, a, b.t(),
                     {.gelu = MatmulGelu::kBackward,
                      .gelu_input = Bf16({16, 16}),
                      .a_scale = scale,
                      .b_scale = scale}));
}

// The log of a product into [rows, 8], without or with GELU.
std::string LogOf(MatmulGelu gelu, int64_t rows) {
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(DeviceMatmul(Bf16({rows, 8}), Bf16({rows, 16}), Bf16({16, 8}), {.gelu = gelu}));
  return ::testing::internal::GetCapturedStderr();
}

TEST_F(DeviceMatmulTest, SaysOnceWhatCublasLtHasNoWayFor) {
  kernels::CudaKernelTable without = *dtrain::testing::FakeKernelTable(&cuda_);
  without.create_matmul = [](const kernels::MatmulProblem&,
                             size_t) -> absl::StatusOr<std::unique_ptr<kernels::Matmul>> {
    return absl::NotFoundError("cublasLt has no way");
  };
  Use(&without);
  const std::string of_gelu = LogOf(MatmulGelu::kForward, 5);
  EXPECT_THAT(of_gelu, HasSubstr("GELU is a pass over memory of its own"));
  EXPECT_THAT(of_gelu, HasSubstr("cublasLt has no way"));
  EXPECT_THAT(of_gelu, Not(HasSubstr("gradients"))) << "they are summed as ever";
  EXPECT_EQ(LogOf(MatmulGelu::kForward, 6), "");
  EXPECT_THAT(LogOf(MatmulGelu::kNone, 5), HasSubstr("take ATen's, and gradients are copied"));
  EXPECT_EQ(LogOf(MatmulGelu::kNone, 6), "");
}

}  // namespace
}  // namespace dtrain::ops::device_matmul_test
