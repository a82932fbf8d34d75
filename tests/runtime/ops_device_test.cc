// The fused operations' way to a GPU's kernels, over the fake GPU, whose tensors are the host's:
// which kernels are launched, on which stream, with what, and that nobody waits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "dtrain/fp8.h"
#include "dtrain/ops.h"
#include "runtime/ops/device_kernels.h"
#include "tests/runtime/fake_device.h"
#include "tests/runtime/fake_op_kernels.h"
#include "tests/runtime/operation_count.h"
#include "tests/runtime/ops_cases.h"

namespace dtrain::ops {
namespace {

using testing::CasesOfWidth;
using testing::OperationCase;
using testing::RandomLeaf;
using testing::Tensors;

class OpsDeviceTest : public ::testing::Test {
 protected:
  void TearDown() override {
    SetGpuForTesting(nullptr, nullptr);
    EXPECT_THAT(cuda_.violations(), ::testing::IsEmpty());
  }
  void UseFakeGpu() {
    SetGpuForTesting(dtrain::testing::FakeKernelTable(&cuda_),
                     Device::KernelStream(cuda_.host_stream()));
  }
  comm::FakeCuda cuda_;
};

// Results of a case, then the leaves' gradients for fixed gradients of the results.
Tensors RunCase(const OperationCase& operation, const Tensors& leaves) {
  Tensors all = operation.run(leaves);
  Tensors seeds;
  for (const at::Tensor& result : all) {
    seeds.push_back(
        at::sin(at::arange(result.numel(), at::kFloat)).view(result.sizes()).to(result));
  }
  const Tensors gradients = torch::autograd::grad(all, leaves, seeds);
  all.insert(all.end(), gradients.begin(), gradients.end());
  return all;
}

TEST_F(OpsDeviceTest, EveryOperationTakesTheTablesKernelsOnTheCurrentStream) {
  at::manual_seed(1);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t hidden : {17, 64}) {
      for (const OperationCase& operation : CasesOfWidth(hidden)) {
        SCOPED_TRACE(absl::StrCat(operation.name, ", ", hidden, " wide, ", at::toString(type)));
        Tensors leaves;
        for (const auto& shape : operation.shapes) {
          leaves.push_back(RandomLeaf(shape, type));
        }
        const Tensors host = RunCase(operation, leaves);
        UseFakeGpu();
        const int before = dtrain::testing::FakeKernelLaunches();
        const Tensors device = RunCase(operation, leaves);
        EXPECT_EQ(dtrain::testing::FakeKernelLaunches() - before, operation.launches);
        SetGpuForTesting(nullptr, nullptr);
        for (size_t i = 0; i < host.size(); ++i) {  // The fake's kernels are the host's.
          EXPECT_TRUE(device[i].equal(host[i])) << "result or gradient " << i;
        }
      }
    }
  }
}

TEST_F(OpsDeviceTest, Fp8OperandsAreMadeByTheTablesKernels) {
  at::manual_seed(2);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensors leaves = {RandomLeaf({48, 64}, type), RandomLeaf({32, 64}, type)};
    const OperationCase linear{"Fp8Linear", 0, {}, [](const Tensors& in) -> Tensors {
                                 return {Fp8Linear(in[0], in[1], {}, {.enabled = true})};
                               }};
    const Tensors host = RunCase(linear, leaves);
    UseFakeGpu();
    const int before = dtrain::testing::FakeKernelLaunches();
    const Tensors device = RunCase(linear, leaves);
    // x, weight; dy and weight again in backward: the largest magnitude and the cast of each.
    EXPECT_EQ(dtrain::testing::FakeKernelLaunches() - before, 8);
    SetGpuForTesting(nullptr, nullptr);
    for (size_t i = 0; i < host.size(); ++i) {
      EXPECT_TRUE(device[i].equal(host[i])) << "result or gradient " << i;
    }
  }
}

TEST_F(OpsDeviceTest, WhatNoKernelTakesFallsBackToAten) {
  UseFakeGpu();
  const int before = dtrain::testing::FakeKernelLaunches();
  for (const OperationCase& operation : CasesOfWidth(8)) {
    Tensors leaves;
    for (const auto& shape : operation.shapes) {
      leaves.push_back(RandomLeaf(shape, at::kDouble));
    }
    RunCase(operation, leaves);
  }
  EXPECT_EQ(dtrain::testing::FakeKernelLaunches(), before);
}

TEST_F(OpsDeviceTest, DropoutReadsItsNumbersFromDeviceMemoryAndDropsTheSameInBackward) {
  UseFakeGpu();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    at::manual_seed(4);
    const at::Tensor x = at::ones({37, 41}).to(type).requires_grad_();
    const at::Tensor y = Dropout(x, 0.25);
    const at::Tensor kept = y.ne(0);
    EXPECT_NEAR(kept.to(at::kFloat).mean().item<double>(), 0.75, 0.04);  // 3.6 sigma.
    (y * 3).sum().backward();
    EXPECT_TRUE(x.grad().ne(0).equal(kept));
    EXPECT_FALSE(Dropout(x, 0.25).equal(y)) << "each call draws anew";
    at::manual_seed(4);
    EXPECT_TRUE(Dropout(x, 0.25).equal(y)) << "from the device's default generator";
  }
}

TEST_F(OpsDeviceTest, NoOperationWaitsWhereTheTargetsAreCounted) {
  UseFakeGpu();
  const at::Tensor hidden = RandomLeaf({12, 16}, at::kFloat);
  const at::Tensor weight = RandomLeaf({9, 16}, at::kFloat);
  const at::Tensor targets = at::randint(9, {12}, at::kLong);
  const auto waits = [&](const CrossEntropyOptions& options) {
    const dtrain::testing::WaitingOperations operations;
    const Loss fused = LinearCrossEntropy(hidden, weight, targets, options);
    const Loss plain = CrossEntropy(at::linear(hidden, weight), targets, options);
    EXPECT_EQ(fused.count, 12);
    EXPECT_EQ(plain.count, 12);
    return dtrain::testing::WaitingOperations::Count();
  };
  EXPECT_EQ(waits({.targets_counted = 12}), 0);
  EXPECT_GE(waits({}), 2) << "counting takes the targets' values";
}

TEST_F(OpsDeviceTest, ALaunchThatFailsThrowsItsReason) {
  kernels::CudaKernelTable broken = *dtrain::testing::FakeKernelTable(&cuda_);
  broken.rmsnorm_forward = [](const kernels::RmsNormForwardArgs<float>&, CudaStream) {
    return absl::InternalError("launch of rmsnorm forward: out of resources");
  };
  SetGpuForTesting(&broken, Device::KernelStream(cuda_.host_stream()));
  try {
    RmsNorm(at::ones({2, 8}), at::ones({8}), 1e-5);
    FAIL() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                ::testing::HasSubstr("launch of rmsnorm forward: out of resources"));
  }
}

}  // namespace
}  // namespace dtrain::ops
