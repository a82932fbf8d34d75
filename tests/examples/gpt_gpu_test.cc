// The Transformer on a real GPU, against the CPU: attention by each of LibTorch's kernels, packed
// documents, linear layers that put gradients where they are summed, and a whole model. Without a
// GPU each test says SKIPPED, loudly.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/ops.h"
#include "gpt/causal_attention.h"
#include "gpt/gpt.h"
#include "runtime/ops/gradient_home.h"
#include "tests/examples/small_gpt.h"
#include "tests/runtime/testing/gpu_for_tests.h"
#include "tests/runtime/testing/operation_count.h"

namespace gpt_gpu_test {
namespace {

using dtrain::ops::testing::Distance;
using dtrain::ops::testing::RandomLeaf;
using dtrain::ops::testing::Tensors;

class GptGpuTest : public dtrain::testing::GpuTest {
 protected:
  Tensors OnGpu(const Tensors& host) const {
    Tensors device;
    for (const at::Tensor& tensor : host) {
      device.push_back(tensor.detach().to(where_).requires_grad_());
    }
    return device;
  }
};

// The result and the gradients of q, k, v for a fixed gradient.
Tensors Attend(const Tensors& qkv, const AttentionCall& call) {
  const at::Tensor out = CausalAttention(qkv[0], qkv[1], qkv[2], call);
  const at::Tensor seed =
      at::sin(at::arange(out.numel(), at::kFloat)).view(out.sizes()).to(out.options());
  Tensors all = torch::autograd::grad({out}, qkv, {seed});
  all.insert(all.begin(), out.detach());
  return all;
}

TEST_F(GptGpuTest, AttentionKernelsGiveTheCpusResultsWithAndWithoutDocuments) {
  at::manual_seed(1);
  const std::vector<int64_t> documents = {100, 28, 1, 127};
  for (const int64_t head_dim : {64, 128}) {
    const Tensors host = {RandomLeaf({2, 128, 8, head_dim}, at::kFloat),
                          RandomLeaf({2, 128, 2, head_dim}, at::kFloat),
                          RandomLeaf({2, 128, 2, head_dim}, at::kFloat)};
    for (const bool packed : {false, true}) {
      AttentionCall call{.backend = AttentionBackend::kMath};
      if (packed) {
        call.document_lengths = documents;
      }
      const Tensors expected = Attend(host, call);
      for (const auto& [name, backend] : AttentionBackends()) {
        SCOPED_TRACE(name + (packed ? ", packed" : "") + ", " + std::to_string(head_dim));
        call.backend = backend;
        Tensors low;
        for (const at::Tensor& tensor : host) {
          low.push_back(tensor.detach().to(at::kBFloat16));
        }
        Tensors got;
        try {
          got = Attend(OnGpu(low), call);
        } catch (const c10::Error& error) {
          // Flash and cuDNN are for sm_80 and later; cuDNN may refuse a document of one token.
          const bool of_some =
              backend == AttentionBackend::kFlash || backend == AttentionBackend::kCudnn;
          EXPECT_TRUE((of_some && ComputeCapability() < 80) ||
                      (packed && backend == AttentionBackend::kCudnn))
              << error.what_without_backtrace();
          std::fprintf(stderr, "*** SKIPPED: attention by %s: %s ***\n", name.c_str(),
                       error.what_without_backtrace());
          continue;
        }
        for (size_t i = 0; i < got.size(); ++i) {  // bf16 factors of unit size, sums of 128.
          EXPECT_LT(Distance(got[i].cpu(), expected[i]), 0.05) << i;
        }
      }
    }
  }
}

// Homes for the gradients of two weights in fp32, one after the other.
class Homes : public dtrain::ops::GradientHomes {
 public:
  explicit Homes(at::Tensor flat) : flat_(std::move(flat)) {}
  dtrain::ops::GradientHome TakeHome(size_t index, bool /*can_add*/) override {
    const int64_t half = flat_.size(0) / 2;
    return {flat_.narrow(0, static_cast<int64_t>(index) * half, half),
            std::exchange(taken_[index], true)};
  }

 private:
  const at::Tensor flat_;
  bool taken_[2] = {};
};

TEST_F(GptGpuTest, ProductsOfBf16AreAddedToFp32WithoutARounding) {
  at::manual_seed(2);
  for (const int64_t in : {256, 250}) {  // Rows of 500 bytes are ATen's.
    const at::Tensor both = at::randn({128, in}).to(at::kBFloat16).to(where_);
    const Tensors weights = {both.narrow(0, 0, 64).detach().requires_grad_(),
                             both.narrow(0, 64, 64).detach().requires_grad_()};
    const at::Tensor sum = at::full({128, in}, 7, both.options().dtype(at::kFloat));
    Homes homes(sum);
    const dtrain::ops::GradientHomesOf registered(weights, homes);
    at::Tensor expected = at::zeros({128, in}, sum.options().dtype(at::kDouble));
    for (int batch = 0; batch < 3; ++batch) {
      const at::Tensor x = at::randn({96, in}).to(at::kBFloat16).to(where_);
      const at::Tensor y = dtrain::ops::MergedLinear(x, weights);
      EXPECT_LT(Distance(y, at::linear(x.to(at::kDouble), both.to(at::kDouble))), 0x1p-7);
      const at::Tensor dy = at::randn_like(y);
      y.backward(dy);
      EXPECT_FALSE(weights[0].grad().defined());
      expected += at::mm(dy.t().to(at::kDouble), x.to(at::kDouble));
    }
    // Sums of some 300 products in fp32, or of three that were rounded to bf16, whose total may be
    // smaller than each.
    EXPECT_LT(Distance(sum, expected), in == 256 ? 1e-4 : 0.1);
  }
}

TEST_F(GptGpuTest, BiasesAreAddedInTheProduct) {
  at::manual_seed(3);
  const Tensors weights = {Leaf({64, 256}, at::kBFloat16), Leaf({32, 256}, at::kBFloat16)};
  const Tensors biases = {Leaf({64}, at::kBFloat16), Leaf({32}, at::kBFloat16)};
  const at::Tensor x = Leaf({48, 256}, at::kBFloat16);
  const at::Tensor y = dtrain::ops::MergedLinear(x, weights, biases);
  const at::Tensor expected = at::linear(x.to(at::kDouble), at::cat(weights).to(at::kDouble),
                                         at::cat(biases).to(at::kDouble));
  EXPECT_LT(Distance(y, expected), 0x1p-7);
}

// Documents of 10, 6 and 16 tokens in rows of 16, on `device`.
dtrain::Batch PackedBatch(const at::Device& device) {
  const at::TensorOptions ids(at::kLong);
  const at::Tensor tokens = (at::arange(32, ids) * 37 % 128).view({2, 16});
  return {.tokens = tokens.to(device),
          .targets = (tokens * 5 % 128).to(device),
          .positions = at::cat({at::arange(10, ids), at::arange(6, ids), at::arange(16, ids)})
                           .view({2, 16})
                           .to(device),
          .targets_counted = 32,
          .document_lengths = {10, 6, 16}};
}

// The loss, then the parameters' gradients, of a model of that seed there.
Tensors LossAndGradients(Architecture architecture, const at::Device& device, at::ScalarType type) {
  at::manual_seed(4);
  const SmallGptSizes sizes{
      .vocabulary = 128, .heads = 2, .head_dim = 64, .intermediate = 256, .positions = 64};
  Gpt model(SmallGpt(architecture, sizes));
  model->to(device, type);
  const dtrain::Batch batch = PackedBatch(device);
  at::Tensor sum;
  {
    const dtrain::testing::WaitingOperations operations;
    sum = model->Loss(batch).sum;
    if (!device.is_cpu()) {
      EXPECT_EQ(dtrain::testing::WaitingOperations::Count(), 0);
    }
  }
  sum.backward();
  Tensors all = {sum.detach().cpu()};
  for (const at::Tensor& parameter : model->parameters()) {
    all.push_back(parameter.grad().cpu());
  }
  return all;
}

TEST_F(GptGpuTest, AModelOfPackedDocumentsTrainsAsOnTheCpuAndWaitsForNothing) {
  for (const auto architecture :
       {Architecture::kGpt2, Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3}) {
    SCOPED_TRACE(ModelTypeName(architecture));
    const Tensors expected = LossAndGradients(architecture, at::kCPU, at::kFloat);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const Tensors got = LossAndGradients(architecture, where_, type);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {  // Two layers, with sums in another order.
        const double share = type == at::kFloat ? 1e-4 : 0.06;
        EXPECT_LT(Distance(got[i], expected[i]),
                  share * (1e-3 + expected[i].abs().max().item<double>()))
            << i << " in " << type;
      }
    }
  }
}

}  // namespace
}  // namespace gpt_gpu_test
