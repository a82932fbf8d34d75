// The fused operations on a real GPU: against ATen's in fp64 there, gradients included, and the
// same bits when repeated. Without a GPU each test says SKIPPED, loudly, and ctest counts the
// program as skipped.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "dtrain/fp8.h"
#include "dtrain/ops.h"
#include "dtrain/recompute.h"
#include "tests/runtime/testing/gpu_for_tests.h"
#include "tests/runtime/testing/ops_cases.h"

namespace dtrain::ops::ops_gpu_test {
namespace {

using testing::CasesOfWidth;
using testing::Distance;
using testing::ExpectSame;
using testing::OperationCase;
using testing::RandomLeaf;
using testing::Tensors;
using testing::ToleranceOf;

using OpsGpuTest = dtrain::testing::GpuTest;

TEST_F(OpsGpuTest, EveryOperationEqualsAtenForwardAndBackward) {
  at::manual_seed(1);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t hidden : {2, 17, 64, 1000, 4096}) {
      for (const OperationCase& operation : CasesOfWidth(hidden)) {
        SCOPED_TRACE(absl::StrCat(operation.name, ", ", hidden, " wide, ", at::toString(type)));
        Tensors leaves;
        for (const auto& shape : operation.shapes) {
          leaves.push_back(Leaf(shape, type));
        }
        // The hardware's exponential is good to 2 ulp, sums are those of a GPU.
        ExpectSame(operation.run, operation.run, leaves, 4 * ToleranceOf(type));
        Tensors seeds;
        const Tensors first = operation.run(leaves);
        const Tensors second = operation.run(leaves);
        for (size_t i = 0; i < first.size(); ++i) {
          EXPECT_TRUE(first[i].equal(second[i])) << "result " << i;
          seeds.push_back(at::randn_like(first[i]));
        }
        const Tensors gradients = torch::autograd::grad(first, leaves, seeds);
        const Tensors again = torch::autograd::grad(second, leaves, seeds);
        for (size_t i = 0; i < gradients.size(); ++i) {
          EXPECT_TRUE(gradients[i].equal(again[i])) << "gradient " << i;
        }
      }
    }
  }
}

TEST_F(OpsGpuTest, EveryOperationGivesTheCpusResults) {
  at::manual_seed(2);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const OperationCase& operation : CasesOfWidth(192)) {
      SCOPED_TRACE(absl::StrCat(operation.name, ", ", at::toString(type)));
      Tensors host;
      Tensors device;
      for (const auto& shape : operation.shapes) {
        host.push_back(RandomLeaf(shape, type));
        device.push_back(host.back().detach().to(where_));
      }
      const Tensors expected = operation.run(host);
      const Tensors results = operation.run(device);
      for (size_t i = 0; i < results.size(); ++i) {
        EXPECT_LT(Distance(results[i].cpu(), expected[i]), 4 * ToleranceOf(type)) << i;
      }
    }
  }
}

// With bf16 cublasLt's GELU, by the hardware's tanh, which is good to 1e-3.
TEST_F(OpsGpuTest, GeluMlpEqualsAtenForwardAndBackward) {
  at::manual_seed(5);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t inner : {17, 64, 1000}) {
      SCOPED_TRACE(absl::StrCat(inner, " inner, ", at::toString(type)));
      const auto leaf = [&](std::vector<int64_t> shape, double scale) {
        const at::Tensor host = RandomLeaf(shape, type, scale);
        return host.detach().to(where_).requires_grad_();
      };
      const Tensors leaves = {leaf({33, 64}, 1), leaf({64, inner}, 0.1), leaf({inner, 48}, 0.1),
                              leaf({inner}, 1), leaf({48}, 1)};
      const auto mlp = [](const Tensors& in) -> Tensors {
        return {GeluMlp(in[0], in[1], in[2], {in[3], in[4]})};
      };
      ExpectSame(mlp, mlp, leaves, 4 * ToleranceOf(type));
    }
  }
}

// The units multiply the codes that the CPU emulates; sums differ.
TEST_F(OpsGpuTest, Fp8ProductsAreThoseThatTheCpuEmulates) {
  if (ComputeCapability() < 89) {
    GTEST_SKIP() << "this GPU has no FP8 units";
  }
  at::manual_seed(3);
  for (const auto scaling : {Fp8Options::Scaling::kTensorwise, Fp8Options::Scaling::kRowwise}) {
    for (const auto gradients : {Fp8Options::Gradients::kE5m2, Fp8Options::Gradients::kE4m3}) {
      const Fp8Options options{.enabled = true, .scaling = scaling, .gradients = gradients};
      const Tensors host = {RandomLeaf({64, 128}, at::kBFloat16),
                            RandomLeaf({96, 128}, at::kBFloat16)};
      const Tensors device = {host[0].detach().to(where_).requires_grad_(),
                              host[1].detach().to(where_).requires_grad_()};
      const at::Tensor expected = Fp8Linear(host[0], host[1], {}, options);
      const at::Tensor got = Fp8Linear(device[0], device[1], {}, options);
      // Fast sums keep 14 bits; the result has 8.
      EXPECT_LT(Distance(got.cpu(), expected), 0x1p-6);
      const at::Tensor dy = at::randn_like(expected);
      const auto wanted = torch::autograd::grad({expected}, host, {dy});
      const auto gradient = torch::autograd::grad({got}, device, {dy.to(where_)});
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_LT(Distance(gradient[i].cpu(), wanted[i]), 0x1p-6) << i;
      }
    }
  }
}

TEST_F(OpsGpuTest, ProgramsThatComputeOnTheDefaultStreamStayInOrder) {
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  const c10::Stream before = guard.exchangeStream(guard.getDefaultStream(where_));
  const at::Tensor x = at::randn({512, 4096}, at::TensorOptions().device(where_));
  const at::Tensor weight = at::ones({4096}, x.options());
  const at::Tensor y = RmsNorm(x * 3, weight, 1e-6) * 2;
  const at::Tensor expected = at::rms_norm(x.to(at::kDouble) * 3, {4096}, {}, 1e-6) * 2;
  EXPECT_LT(Distance(y, expected), 1e-5);
  guard.exchangeStream(before);
}

TEST_F(OpsGpuTest, DropoutFollowsTheDevicesGeneratorAndRepeatsInARecomputedSegment) {
  const at::Tensor x = at::ones({37, 4001}, at::TensorOptions().device(where_)).requires_grad_();
  at::manual_seed(4);
  const at::Tensor y = Dropout(x, 0.25);
  const at::Tensor kept = y.ne(0);
  EXPECT_NEAR(kept.to(at::kFloat).mean().item<double>(), 0.75, 0.004);
  (y * 3).sum().backward();
  EXPECT_TRUE(x.grad().ne(0).equal(kept));
  EXPECT_FALSE(Dropout(x, 0.25).equal(y));
  at::manual_seed(4);
  EXPECT_TRUE(Dropout(x, 0.25).equal(y));
  x.mutable_grad() = at::Tensor();
  at::manual_seed(4);
  const at::Tensor again = Recompute([](const at::Tensor& in) { return Dropout(in, 0.25); }, x);
  EXPECT_TRUE(again.equal(y));
  again.sum().backward();
  EXPECT_TRUE(x.grad().ne(0).equal(kept));
}

}  // namespace
}  // namespace dtrain::ops::ops_gpu_test
