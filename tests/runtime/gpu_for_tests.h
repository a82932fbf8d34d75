// What tests of one process on a real GPU start from. Without a GPU each says SKIPPED, loudly, and
// ctest counts the program as skipped.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

#include "runtime/device/cuda_backend.h"
#include "runtime/engine/cpu_rng.h"
#include "runtime/ops/device_kernels.h"
#include "tests/runtime/ops_testing.h"

namespace dtrain::testing {

class GpuTest : public ::testing::Test {
 protected:
  // The device stays the process's: LibTorch's CUDA half is mapped once.
  void SetUp() override {
    static const GpuFacts* const facts = new GpuFacts(FindGpus(0));
    if (facts->gpus == 0) {
      const std::string why = facts->driver ? facts->why_none : "no NVIDIA driver";
      std::fprintf(stderr, "*** SKIPPED: NOT TESTED ON A GPU: %s ***\n", why.c_str());
      GTEST_SKIP() << why;
    }
    ASSERT_TRUE(TheDevice().ok()) << TheDevice().status();
    ASSERT_TRUE(ops::HasKernels((*TheDevice())->tensors()));
    UseDeviceRng((*TheDevice())->tensors());
    where_ = (*TheDevice())->tensors();
  }
  at::Tensor Leaf(at::IntArrayRef sizes, at::ScalarType type) const {
    return ops::testing::RandomLeaf(sizes, type).detach().to(where_).requires_grad_();
  }
  static int ComputeCapability() {  // 90: sm_90.
    comm::CudaDeviceFacts facts;
    const Device& device = **TheDevice();
    EXPECT_EQ(device.api().DeviceFacts(device.place().index, &facts), comm::CudaResult::kSuccess);
    return facts.compute_capability;
  }
  at::Device where_ = at::kCPU;

 private:
  static const absl::StatusOr<std::unique_ptr<Device>>& TheDevice() {
    static const auto* const device =
        new absl::StatusOr<std::unique_ptr<Device>>(OpenCudaDevice(0));
    return *device;
  }
};

}  // namespace dtrain::testing
