// The Transformer on a real GPU, against the CPU: attention by each of LibTorch's kernels, packed
// documents by one call and by one each, linear layers that put gradients where they are summed,
// and a whole model. Without a GPU each test says SKIPPED, loudly.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/ops.h"
#include "gpt/causal_attention.h"
#include "gpt/document_attention.h"
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

// Two rows of 256 tokens, and three: odd lengths, single tokens, one document that fills its row,
// and documents that end at a block of the kernels and one beyond.
const std::vector<int64_t> kPackings[] = {{37, 1, 218, 256},
                                          {1, 127, 128, 129, 126, 1, 93, 162, 1}};

at::Tensor Positions(const std::vector<int64_t>& lengths) {
  Tensors positions;
  for (const int64_t length : lengths) {
    positions.push_back(at::arange(length, at::kLong));
  }
  return at::cat(positions).view({-1, 256});
}

// How far `got` is from `expected`, as a share of its length as a vector.
double ShareOfNorm(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor wide = expected.to(at::kDouble);
  return ((got.cpu().to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

class OneCallTest : public GptGpuTest {
 protected:
  void SetUp() override {
    GptGpuTest::SetUp();
    if (!IsSkipped() && !HasFatalFailure() && ComputeCapability() < 80) {
      std::fprintf(stderr, "*** SKIPPED: NOT TESTED ON sm_%d: no flash attention ***\n",
                   ComputeCapability());
      GTEST_SKIP();
    }
  }

  // Leaves of the GPU: eight heads, in groups where `kv_heads` are fewer.
  Tensors Heads(const std::vector<int64_t>& lengths, int64_t head_dim, int64_t kv_heads,
                at::ScalarType type) const {
    const int64_t rows = std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) / 256;
    return {Leaf({rows, 256, 8, head_dim}, type), Leaf({rows, 256, kv_heads, head_dim}, type),
            Leaf({rows, 256, kv_heads, head_dim}, type)};
  }
  at::Tensor Offsets(const std::vector<int64_t>& lengths, int64_t empty = 0) const {
    return DocumentOffsets(Positions(lengths).to(where_),
                           static_cast<int64_t>(lengths.size()) + empty);
  }
};

// Attend, and a failure unless flash attention was called that often, forward and backward.
Tensors AttendByCalls(int calls, const Tensors& qkv, const AttentionCall& call) {
  const dtrain::testing::OperationCount count(
      {"aten::_flash_attention_forward", "aten::_flash_attention_backward"});
  Tensors all = Attend(qkv, call);
  EXPECT_EQ(dtrain::testing::OperationCount::Count(), calls);
  return all;
}

TEST_F(OneCallTest, GivesWhatOneCallForEachDocumentGives) {
  at::manual_seed(5);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const auto& [head_dim, kv_heads] :
         {std::pair(64, 8), std::pair(128, 2), std::pair(40, 4)}) {
      for (const std::vector<int64_t>& lengths : kPackings) {
        SCOPED_TRACE(std::string(at::toString(type)) + ", head_dim " + std::to_string(head_dim) +
                     ", " + std::to_string(lengths.size()) + " documents");
        const Tensors qkv = Heads(lengths, head_dim, kv_heads, type);
        Tensors exact;
        for (const at::Tensor& heads : qkv) {
          exact.push_back(heads.detach().cpu().to(at::kFloat).requires_grad_());
        }
        AttentionCall call{.backend = AttentionBackend::kMath, .document_lengths = lengths};
        const Tensors expected = Attend(exact, call);
        call.backend = AttentionBackend::kFlash;
        const Tensors apart = Attend(qkv, call);
        call.document_offsets = Offsets(lengths);
        const Tensors got = AttendByCalls(2, qkv, call);
        // Attention rounds weights, their gradients, results and a group's parts: four roundings of
        // half a unit in the last of 8 bits (bf16) or 11 (fp16), whose signs differ, and as much
        // again for the gradient that reads the rounded result.
        const double unit = type == at::kBFloat16 ? 0x1p-8 : 0x1p-11;
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_LT(ShareOfNorm(got[i], expected[i]), 4 * unit) << i;
          EXPECT_LT(ShareOfNorm(apart[i], expected[i]), 4 * unit) << i << ", one call each";
        }
      }
    }
  }
}

TEST_F(OneCallTest, IsForFlashAttentionOfTypesOfTwoBytes) {
  const std::vector<int64_t>& lengths = kPackings[0];
  const at::Tensor offsets = Offsets(lengths);
  const auto calls = [&](int expected, at::ScalarType type, AttentionBackend backend) {
    SCOPED_TRACE(std::string(at::toString(type)) + ", backend " +
                 std::to_string(static_cast<int>(backend)));
    AttendByCalls(expected, Heads(lengths, 64, 8, type),
                  {.backend = backend, .document_lengths = lengths, .document_offsets = offsets});
  };
  calls(2, at::kBFloat16, AttentionBackend::kAuto);
  calls(0, at::kFloat, AttentionBackend::kAuto);
  calls(0, at::kBFloat16, AttentionBackend::kMath);
  at::globalContext().setSDPUseFlash(false);
  calls(0, at::kBFloat16, AttentionBackend::kAuto);
  at::globalContext().setSDPUseFlash(true);
  // Flash attention of one document is the same operation of LibTorch's.
  AttendByCalls(8, Heads(lengths, 64, 8, at::kBFloat16),
                {.backend = AttentionBackend::kFlash, .document_lengths = lengths});
}

TEST_F(OneCallTest, EmptyDocumentsAtTheEndChangeNoResult) {
  at::manual_seed(6);
  for (const std::vector<int64_t>& lengths : kPackings) {
    const Tensors qkv = Heads(lengths, 64, 4, at::kBFloat16);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    AttentionCall call{.backend = AttentionBackend::kFlash, .document_lengths = lengths};
    call.document_offsets = Offsets(lengths);
    const Tensors without = Attend(qkv, call);
    call.document_offsets = Offsets(lengths, /*empty=*/5);
    const Tensors with = Attend(qkv, call);
    at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
    EXPECT_TRUE(with[0].equal(without[0]));
    // With more documents, fewer of the device's processors share the sum of a gradient of q.
    for (size_t i = 1; i < with.size(); ++i) {
      EXPECT_LT(ShareOfNorm(with[i], without[i].cpu()), 0x1p-8) << i;
    }
  }
}

TEST_F(OneCallTest, BackwardRepeatsItsBitsWhereItIsAskedTo) {
  at::manual_seed(7);
  const std::vector<int64_t>& lengths = kPackings[1];
  const Tensors qkv = Heads(lengths, 64, 8, at::kBFloat16);
  const AttentionCall call{.backend = AttentionBackend::kFlash,
                           .document_lengths = lengths,
                           .document_offsets = Offsets(lengths)};
  at::globalContext().setDeterministicAlgorithms(
      true, /*warn_only=*/true);  // Same as the key `deterministic`.
  const Tensors first = Attend(qkv, call);
  for (int repeat = 0; repeat < 5; ++repeat) {
    const Tensors again = Attend(qkv, call);
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(again[i].equal(first[i])) << i;
    }
  }
  EXPECT_TRUE(at::globalContext().deterministicAlgorithmsWarnOnly());
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
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

// Documents of 20, 12 and 32 tokens in rows of 32, on `device`.
dtrain::Batch PackedBatch(const at::Device& device) {
  const at::TensorOptions ids(at::kLong);
  const at::Tensor tokens = (at::arange(64, ids) * 37 % 128).view({2, 32});
  return {.tokens = tokens.to(device),
          .targets = (tokens * 5 % 128).to(device),
          .positions = at::cat({at::arange(20, ids), at::arange(12, ids), at::arange(32, ids)})
                           .view({2, 32})
                           .to(device),
          .targets_counted = 64,
          .document_lengths = {20, 12, 32}};
}

// The loss, then the parameters' gradients, of a model of that seed there. `flash`: the device has
// flash attention.
Tensors LossAndGradients(Architecture architecture, const at::Device& device, at::ScalarType type,
                         bool flash) {
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
  const dtrain::testing::OperationCount calls({"aten::_flash_attention_backward"});
  sum.backward();
  if (type == at::kBFloat16 && flash) {
    EXPECT_EQ(dtrain::testing::OperationCount::Count(), 2) << "one call a layer";
  }
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
    const Tensors expected = LossAndGradients(architecture, at::kCPU, at::kFloat, /*flash=*/false);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const Tensors got = LossAndGradients(architecture, where_, type, ComputeCapability() >= 80);
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
