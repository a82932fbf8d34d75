// The fused operations' way to a GPU's kernels, over the fake GPU, whose tensors are the host's:
// which kernels are launched, on which stream, with what, and that nobody waits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtrain/fp8.h"
#include "dtrain/ops.h"
#include "runtime/ops/device_kernels.h"
#include "runtime/ops/fp8_matrix.h"
#include "runtime/ops/gradient_home.h"
#include "runtime/ops/made_once.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/fake_op_kernels.h"
#include "tests/runtime/testing/operation_count.h"
#include "tests/runtime/testing/ops_cases.h"

namespace dtrain::ops::ops_device_test {
namespace {

using testing::CasesOfWidth;
using testing::Distance;
using testing::OperationCase;
using testing::RandomLeaf;
using testing::Tensors;
using testing::ToleranceOf;

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
        const bool exact = !operation.sums || !dtrain::testing::FakeKernelsAreEmulated();
        for (size_t i = 0; i < host.size(); ++i) {
          EXPECT_TRUE(exact ? device[i].equal(host[i])
                            : Distance(device[i], host[i]) < 4 * ToleranceOf(type))
              << "result or gradient " << i;
        }
      }
    }
  }
}

TEST_F(OpsDeviceTest, Fp8OperandsAreMadeByTheTablesKernels) {
  at::manual_seed(2);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensors leaves = {RandomLeaf({48, 64}, type), RandomLeaf({32, 64}, type)};
    const OperationCase rowwise{
        "Fp8Linear by rows", 0, {}, [](const Tensors& in) -> Tensors {
          return {Fp8Linear(in[0], in[1], {},
                            {.enabled = true, .scaling = Fp8Options::Scaling::kRowwise})};
        }};
    const Tensors by_rows = RunCase(rowwise, leaves);
    UseFakeGpu();
    const int before_rows = dtrain::testing::FakeKernelLaunches();
    const Tensors by_rows_there = RunCase(rowwise, leaves);
    EXPECT_EQ(dtrain::testing::FakeKernelLaunches() - before_rows, 6) << "one for each operand";
    SetGpuForTesting(nullptr, nullptr);
    for (size_t i = 0; i < by_rows.size(); ++i) {
      EXPECT_TRUE(by_rows_there[i].equal(by_rows[i])) << "result or gradient " << i;
    }
    const OperationCase linear{"Fp8Linear", 0, {}, [](const Tensors& in) -> Tensors {
                                 return {Fp8Linear(in[0], in[1], {}, {.enabled = true})};
                               }};
    const Tensors host = RunCase(linear, leaves);
    UseFakeGpu();
    const int before = dtrain::testing::FakeKernelLaunches();
    const Tensors device = RunCase(linear, leaves);
    // The largest magnitude and the cast of x, weight and dy, each with its transpose where that is
    // wanted; in backward the weight's transpose, by the scale that forward found.
    EXPECT_EQ(dtrain::testing::FakeKernelLaunches() - before, 7);
    SetGpuForTesting(nullptr, nullptr);
    for (size_t i = 0; i < host.size(); ++i) {
      EXPECT_TRUE(device[i].equal(host[i])) << "result or gradient " << i;
    }
  }
}

// Leaves of bf16, one after the other in one storage where `neighbours`.
Tensors Neighbours(const std::vector<int64_t>& outs, int64_t in, bool neighbours) {
  int64_t rows = 0;
  for (const int64_t out : outs) {
    rows += out;
  }
  const at::Tensor flat = at::randn({rows, in}).to(at::kBFloat16);
  Tensors leaves;
  int64_t row = 0;
  for (const int64_t out : outs) {
    const at::Tensor leaf = flat.narrow(0, row, out);
    leaves.push_back((neighbours ? leaf.detach() : leaf.clone()).requires_grad_());
    row += out;
  }
  return leaves;
}

TEST_F(OpsDeviceTest, ProductsOfBf16AreTheTables) {
  at::manual_seed(7);
  UseFakeGpu();
  for (const int64_t in : {32, 30}) {  // Rows of 60 bytes are no product of cublasLt's.
    for (const bool neighbours : {true, false}) {
      for (const bool biased : {true, false}) {
        SCOPED_TRACE(absl::StrCat(in, " wide, neighbours ", neighbours, ", biases ", biased));
        const Tensors weights = Neighbours({16, 8}, in, neighbours);
        const Tensors biases =
            biased ? Tensors{RandomLeaf({16}, at::kBFloat16), RandomLeaf({8}, at::kBFloat16)}
                   : Tensors{};
        const at::Tensor x = RandomLeaf({5, in}, at::kBFloat16);
        const int before = dtrain::testing::FakeMatmuls().all;
        const at::Tensor y = MergedLinear(x, weights, biases);
        const int forward = dtrain::testing::FakeMatmuls().all - before;
        EXPECT_EQ(forward, in == 30 ? 0 : neighbours && !biased ? 1 : 2);
        Tensors leaves = {x, weights[0], weights[1]};
        leaves.insert(leaves.end(), biases.begin(), biases.end());
        const at::Tensor seed = at::randn_like(y);
        const Tensors got = torch::autograd::grad({y}, leaves, {seed});
        // The rows' gradient by ATen where it is a sum of two, the weights' as one product.
        EXPECT_EQ(dtrain::testing::FakeMatmuls().all - before - forward, in == 30 ? 0 : 2);
        const at::Tensor expected = at::linear(x, at::cat({weights[0], weights[1]}),
                                               biased ? at::cat(biases) : at::Tensor());
        EXPECT_LT(testing::Distance(y, expected), 0x1p-6);
        const Tensors wanted = torch::autograd::grad({expected}, leaves, {seed});
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_LT(testing::Distance(got[i], wanted[i]), 0x1p-6) << i;
        }
      }
    }
  }
}

TEST_F(OpsDeviceTest, GeluIsPartOfBf16Products) {
  at::manual_seed(10);
  UseFakeGpu();
  for (const int64_t inner : {32, 30}) {  // Rows of 60 bytes are no product of cublasLt's.
    for (const bool biased : {true, false}) {
      SCOPED_TRACE(absl::StrCat(inner, " inner, biases ", biased));
      Tensors leaves = {RandomLeaf({5, 16}, at::kBFloat16),
                        RandomLeaf({16, inner}, at::kBFloat16, 0.2),
                        RandomLeaf({inner, 8}, at::kBFloat16, 0.2)};
      if (biased) {
        leaves.insert(leaves.end(),
                      {RandomLeaf({inner}, at::kBFloat16), RandomLeaf({8}, at::kBFloat16)});
      }
      const auto mlp = [&](const Tensors& in) -> Tensors {
        return {GeluMlp(in[0], in[1], in[2], biased ? Tensors{in[3], in[4]} : Tensors())};
      };
      const int products = dtrain::testing::FakeMatmuls().all;
      const int kernels = dtrain::testing::FakeKernelLaunches();
      testing::ExpectSame(mlp, mlp, leaves, 0x1p-6);  // In fp64 it is ATen's.
      EXPECT_EQ(dtrain::testing::FakeMatmuls().all - products, inner == 32 ? 6 : 0);
      EXPECT_EQ(dtrain::testing::FakeKernelLaunches() - kernels, inner == 32 ? 6 : 2);
    }
  }
}

TEST_F(OpsDeviceTest, GelusInputIsKeptWhereBackwardAsksForIt) {
  at::manual_seed(11);
  UseFakeGpu();
  const Tensors in = {RandomLeaf({5, 16}, at::kBFloat16), RandomLeaf({16, 32}, at::kBFloat16, 0.2),
                      RandomLeaf({32, 8}, at::kBFloat16, 0.2), RandomLeaf({32}, at::kBFloat16),
                      RandomLeaf({8}, at::kBFloat16)};
  const at::Tensor wanted = GeluMlp(in[0], in[1], in[2], {in[3], in[4]});
  const auto kept = [&](const std::set<size_t>& trains) {
    Tensors some = in;
    for (size_t i = 0; i < in.size(); ++i) {
      some[i] = in[i].detach().requires_grad_(trains.count(i) > 0);
    }
    const int before = dtrain::testing::FakeMatmuls().keeping_gelu_input;
    EXPECT_TRUE(GeluMlp(some[0], some[1], some[2], {some[3], some[4]}).equal(wanted));
    return dtrain::testing::FakeMatmuls().keeping_gelu_input - before;
  };
  EXPECT_EQ(kept({0}), 1);
  EXPECT_EQ(kept({1}), 1);
  EXPECT_EQ(kept({3}), 1);
  EXPECT_EQ(kept({2, 4}), 0);
  const at::NoGradGuard no_graph;
  EXPECT_EQ(kept({0, 1, 2, 3, 4}), 0);
}

// Places in fp32 for the gradients of two weights, as an engine keeps those of bf16 weights.
class Homes : public GradientHomes {
 public:
  explicit Homes(Tensors weights)
      : flat(at::full({weights[0].numel() + weights[1].numel()}, 7.0)),
        weights_(std::move(weights)) {}
  GradientHome TakeHome(size_t index, bool can_add) override {
    EXPECT_TRUE(can_add);
    return {Place(index), std::exchange(taken_[index], true)};
  }
  at::Tensor Place(size_t index) const {
    const at::Tensor& weight = weights_[index];
    return flat.narrow(0, index == 0 ? 0 : weights_[0].numel(), weight.numel())
        .view(weight.sizes());
  }
  at::Tensor flat;

 private:
  const Tensors weights_;
  bool taken_[2] = {};
};

TEST_F(OpsDeviceTest, GradientsOfBf16WeightsAreSummedInFp32WithoutARounding) {
  at::manual_seed(8);
  UseFakeGpu();
  for (const int64_t in : {32, 30}) {
    for (const bool one_frozen : {false, true}) {
      SCOPED_TRACE(absl::StrCat(in, " wide, one frozen ", one_frozen));
      const Tensors weights = Neighbours({16, 8}, in, true);
      weights[0].requires_grad_(!one_frozen);
      Homes homes(weights);
      const GradientHomesOf registered(weights, homes);
      at::Tensor expected = at::zeros({24, in}, at::kDouble);
      for (int batch = 0; batch < 3; ++batch) {
        const at::Tensor x = at::randn({5, in}).to(at::kBFloat16);
        const at::Tensor y = MergedLinear(x, weights);
        const auto before = dtrain::testing::FakeMatmuls();
        const at::Tensor dy = at::randn_like(y);
        y.backward(dy);
        const auto after = dtrain::testing::FakeMatmuls();
        EXPECT_EQ(after.into_fp32 - before.into_fp32, in == 30 ? 0 : 1);
        EXPECT_EQ(after.adding - before.adding, in == 30 || batch == 0 ? 0 : 1);
        EXPECT_FALSE(weights[1].grad().defined());
        expected += at::mm(dy.t().to(at::kDouble), x.to(at::kDouble));
      }
      // Sums of 15 products in fp32; ATen rounds each micro-batch's, of up to 16, to bf16.
      EXPECT_LT(testing::Distance(homes.Place(1), expected.narrow(0, 16, 8)),
                in == 30 ? 3 * 0x1p-5 : 1e-5);
      EXPECT_EQ(one_frozen, (homes.Place(0)[0] == 7).all().item<bool>());
    }
  }
}

TEST_F(OpsDeviceTest, GradientsOfGpt2sMlpAreSummedInFp32WithoutARounding) {
  at::manual_seed(12);
  UseFakeGpu();
  const Tensors weights = {RandomLeaf({16, 32}, at::kBFloat16, 0.2),
                           RandomLeaf({32, 8}, at::kBFloat16, 0.2)};
  const at::Tensor one = at::eye(32).to(at::kBFloat16);  // By which a product is what it was.
  Homes homes(weights);
  const GradientHomesOf registered(weights, homes);
  at::Tensor of_up = at::zeros({16, 32}, at::kDouble);
  at::Tensor of_down = at::zeros({32, 8}, at::kDouble);
  for (int batch = 0; batch < 3; ++batch) {
    const at::Tensor x = at::randn({5, 16}).to(at::kBFloat16);
    const at::Tensor y = GeluMlp(x, weights[0], weights[1]);
    const auto before = dtrain::testing::FakeMatmuls();
    const at::Tensor dy = at::randn_like(y);
    y.backward(dy);
    const auto after = dtrain::testing::FakeMatmuls();
    EXPECT_EQ(after.into_fp32 - before.into_fp32, 2);
    EXPECT_EQ(after.adding - before.adding, batch == 0 ? 0 : 2);
    EXPECT_FALSE(weights[0].grad().defined() || weights[1].grad().defined());
    // GELU's input, output and gradient, in bf16 as in the fused operation.
    const at::Tensor given = TransposedLinear(x, weights[0]).detach().requires_grad_();
    const at::Tensor made = GeluMlp(x, weights[0], one).detach();
    GeluMlp(given, one, weights[1].detach()).backward(dy);
    of_up += at::mm(x.t().to(at::kDouble), given.grad().to(at::kDouble));
    of_down += at::mm(made.t().to(at::kDouble), dy.to(at::kDouble));
  }
  EXPECT_LT(testing::Distance(homes.Place(0), of_up), 1e-5);
  EXPECT_LT(testing::Distance(homes.Place(1), of_down), 1e-5);
}

TEST_F(OpsDeviceTest, GradientsOfFp8LayersAreSummedInFp32ByTheTablesProducts) {
  at::manual_seed(9);
  for (const auto scaling : {Fp8Options::Scaling::kTensorwise, Fp8Options::Scaling::kRowwise}) {
    const Fp8Options options{.enabled = true, .scaling = scaling};
    UseFakeGpu();
    const Tensors weights = Neighbours({32, 16}, 32, true);
    Homes homes(weights);
    const GradientHomesOf registered(weights, homes);
    at::Tensor expected = at::zeros({48, 32}, at::kDouble);
    for (int batch = 0; batch < 3; ++batch) {
      const at::Tensor x = at::randn({16, 32}).to(at::kBFloat16);
      const at::Tensor dy = at::randn({16, 48}).to(at::kBFloat16);
      const auto before = dtrain::testing::FakeMatmuls();
      MergedFp8Linear(x, weights, {}, options).backward(dy);
      const auto after = dtrain::testing::FakeMatmuls();
      const bool tensorwise = scaling == Fp8Options::Scaling::kTensorwise;
      EXPECT_EQ(after.into_fp32 - before.into_fp32, tensorwise ? 1 : 0);
      EXPECT_EQ(after.adding - before.adding, tensorwise && batch > 0 ? 1 : 0);
      EXPECT_FALSE(weights[0].grad().defined());
      const at::Tensor alone = at::cat(weights).detach().to(at::kFloat).requires_grad_();
      Fp8Linear(x.to(at::kFloat), alone, {}, options).backward(dy.to(at::kFloat));
      expected += alone.grad();
    }
    EXPECT_LT(testing::Distance(homes.flat.view({48, 32}), expected), 1e-5)
        << "without a rounding to bf16";
  }
}

TEST_F(OpsDeviceTest, WithoutCublasLtProductsAreAtens) {
  kernels::CudaKernelTable without = *dtrain::testing::FakeKernelTable(&cuda_);
  without.create_matmul = [](const kernels::MatmulProblem&,
                             size_t) -> absl::StatusOr<std::unique_ptr<kernels::Matmul>> {
    return absl::NotFoundError("libcublasLt.so.13: cannot open");
  };
  SetGpuForTesting(&without, Device::KernelStream(cuda_.host_stream()));
  const Tensors weights = Neighbours({16, 8}, 32, true);
  Homes homes(weights);
  const GradientHomesOf registered(weights, homes);
  const at::Tensor x = RandomLeaf({5, 32}, at::kBFloat16);
  ::testing::internal::CaptureStderr();
  for (int batch = 0; batch < 2; ++batch) {
    MergedLinear(x, weights).sum().backward();
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, ::testing::HasSubstr("take ATen's"));
  EXPECT_THAT(log, ::testing::HasSubstr("libcublasLt.so.13"));
  const at::Tensor each = x.detach().to(at::kFloat).sum(0, /*keepdim=*/true);
  EXPECT_LT(testing::Distance(homes.flat.view({24, 32}), (2 * each).expand({24, 32})), 0x1p-6);
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

// A scale that is captured before any ran: on a GPU the zeros of its progress are recorded too, so
// the memory holds anything until the graph is launched.
class CapturedScaleTest : public OpsDeviceTest {
 protected:
  void SetUp() override {
    fakes = dtrain::testing::FakeKernelTable(&cuda_);
    kernels::CudaKernelTable& table = table_ = *fakes;
    table.fp8_scale = [](const kernels::Fp8ScaleArgs& args, CudaStream stream) {
      if (capturing) {
        *args.progress = {.most = 0x7f000000, .blocks = 3};
      }
      return fakes->fp8_scale(args, stream);
    };
    // A stream that no other test's scales were on: the memory is kept for the process.
    ASSERT_EQ(cuda_.StreamCreate(&stream_, false), comm::CudaResult::kSuccess);
    SetGpuForTesting(&table_, Device::KernelStream(stream_), &cuda_);
  }
  void TearDown() override {
    EXPECT_EQ(cuda_.StreamDestroy(stream_), comm::CudaResult::kSuccess);
    OpsDeviceTest::TearDown();
  }
  float Inverse(const at::Tensor& x) {
    const Fp8Matrix matrix = ToFp8(x, kernels::Fp8Format::kE4m3, Fp8Options::Scaling::kTensorwise);
    EXPECT_EQ(cuda_.StreamSynchronize(stream_), comm::CudaResult::kSuccess);
    return matrix.inverse.item<float>();
  }

  static inline const kernels::CudaKernelTable* fakes = nullptr;
  static inline bool capturing = false;
  kernels::CudaKernelTable table_ = {};
  comm::CudaStream* stream_ = nullptr;
};

TEST_F(CapturedScaleTest, LeavesNothingToTheScalesThatRunAfterwards) {
  const at::Tensor x = at::full({16, 16}, 2.0F);
  comm::CudaGraph* graph = nullptr;
  ASSERT_EQ(cuda_.StreamBeginCapture(stream_), comm::CudaResult::kSuccess);
  capturing = true;
  const Fp8Matrix captured = ToFp8(x, kernels::Fp8Format::kE4m3, Fp8Options::Scaling::kTensorwise);
  capturing = false;
  ASSERT_EQ(cuda_.StreamEndCapture(stream_, &graph), comm::CudaResult::kSuccess);
  // The same happens when the capture fails, or the graph is launched later.
  ASSERT_EQ(cuda_.GraphDestroy(graph), comm::CudaResult::kSuccess);
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_EQ(Inverse(x), kernels::Fp8Inverse(2, kernels::Fp8Format::kE4m3));
  }
}

TEST(MadeOnceTest, IsMadeOnceAndAgainAfterAnException) {
  MadeOnce<int, int> numbers;
  int calls = 0;
  const auto make = [&] {
    TORCH_CHECK(++calls > 1, "not yet");
    return 10 * calls;
  };
  EXPECT_THROW(numbers.Get(1, make), c10::Error);
  EXPECT_EQ(numbers.Get(1, make), 20);
  EXPECT_EQ(numbers.Get(1, make), 20);
  EXPECT_EQ(numbers.Get(2, make), 30);
  EXPECT_EQ(calls, 3);
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
}  // namespace dtrain::ops::ops_device_test
