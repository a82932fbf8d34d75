// The base of tests of one process on a real GPU. Without a GPU each says SKIPPED, loudly, and
// ctest counts the program as skipped.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/device/cuda_backend.h"
#include "runtime/model/cpu_rng.h"
#include "runtime/ops/device_kernels.h"
#include "tests/runtime/testing/ops_testing.h"

namespace dtrain::testing {

// The GPU of this process, opened once, before anything asks LibTorch for CUDA; it stays the
// process's, because LibTorch's CUDA half is mapped once. Unavailable, said loudly each time, where
// there is none.
inline const absl::StatusOr<std::unique_ptr<Device>>& TheGpu() {
  static const auto* const device = [] {
    const GpuFacts facts = FindGpus(0);
    return new absl::StatusOr<std::unique_ptr<Device>>(
        facts.gpus > 0
            ? OpenCudaDevice(0)
            : absl::UnavailableError(facts.driver ? facts.why_none : "no NVIDIA driver"));
  }();
  if (absl::IsUnavailable(device->status())) {
    std::fprintf(stderr, "*** SKIPPED: NOT TESTED ON A GPU: %s ***\n",
                 std::string(device->status().message()).c_str());
  }
  return *device;
}

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto& device = TheGpu();
    if (absl::IsUnavailable(device.status())) {
      GTEST_SKIP() << device.status().message();
    }
    ASSERT_TRUE(device.ok()) << device.status();
    ASSERT_TRUE(ops::HasKernels((*device)->tensors()));
    UseDeviceRng((*device)->tensors());
    where_ = (*device)->tensors();
  }
  at::Tensor Leaf(at::IntArrayRef sizes, at::ScalarType type) const {
    return ops::testing::RandomLeaf(sizes, type).detach().to(where_).requires_grad_();
  }
  static int ComputeCapability() {  // 90: sm_90.
    comm::CudaDeviceFacts facts;
    const Device& device = **TheGpu();
    EXPECT_EQ(device.api().DeviceFacts(device.place().index, &facts), comm::CudaResult::kSuccess);
    return facts.compute_capability;
  }
  at::Device where_ = at::kCPU;
};

}  // namespace dtrain::testing
