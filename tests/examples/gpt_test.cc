// The Transformer: attention kernels agree, packed documents are the documents apart, and a
// recomputed layer gives the same gradients.
#include "gpt/gpt.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unordered_set>
#include <vector>

#include "tests/examples/small_gpt.h"
#include "torch/csrc/autograd/function.h"

namespace gpt_test {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSeed = 11;

GptOptions Small(Architecture architecture) {
  GptOptions options = SmallGpt(architecture);
  options.initializer_range = 0.3;  // Attention that looks about.
  return options;
}

std::vector<at::Tensor> Gradients(GptImpl& model, const dtrain::Loss& loss) {
  model.zero_grad();
  loss.sum.backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : model.parameters()) {
    gradients.push_back(parameter.grad().clone());
  }
  return gradients;
}

// Nodes of the loss's graph that stand for a segment that backward runs again.
int64_t RecomputedSegments(const at::Tensor& loss) {
  int64_t segments = 0;
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> waiting = {loss.grad_fn().get()};
  while (!waiting.empty()) {
    const torch::autograd::Node* const node = waiting.back();
    waiting.pop_back();
    if (node == nullptr || !seen.insert(node).second) {
      continue;
    }
    segments += node->name() == "dtrain::Recompute" ? 1 : 0;
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      waiting.push_back(edge.function.get());
    }
  }
  return segments;
}

// Documents of these lengths, one after the other in rows of `sequence` tokens.
struct Packed {
  at::Tensor tokens, targets, positions;
};
Packed Pack(const std::vector<at::Tensor>& documents, int64_t sequence) {
  Packed packed;
  std::vector<at::Tensor> tokens, targets, positions;
  for (const at::Tensor& document : documents) {
    tokens.push_back(document);
    targets.push_back(at::cat({document.slice(0, 1), at::full({1}, dtrain::kIgnoredTarget,
                                                              at::TensorOptions(at::kLong))}));
    positions.push_back(at::arange(document.numel(), at::TensorOptions(at::kLong)));
  }
  return {at::cat(tokens).view({-1, sequence}), at::cat(targets).view({-1, sequence}),
          at::cat(positions).view({-1, sequence})};
}

class GptTest : public ::testing::TestWithParam<Architecture> {
 protected:
  GptTest() {
    at::manual_seed(kSeed);
    std::printf("seed %d\n", static_cast<int>(kSeed));
  }
};

TEST_P(GptTest, PackedDocumentsHaveTheLossAndGradientsOfTheDocumentsApart) {
  Gpt model(Small(GetParam()));
  std::vector<at::Tensor> documents;
  for (const int64_t length : {5, 1, 10, 7, 9}) {  // Rows of 16: 5 + 1 + 10, 7 + 9.
    documents.push_back(at::randint(61, {length}, at::TensorOptions(at::kLong)));
  }
  const Packed packed = Pack(documents, 16);
  const dtrain::Loss together = model->Loss(packed.tokens, packed.targets, packed.positions);
  const auto gradients = Gradients(*model, together);

  model->zero_grad();
  double apart = 0;
  int64_t count = 0;
  for (const at::Tensor& document : documents) {
    if (document.numel() < 2) {
      continue;  // Nothing to foretell.
    }
    const dtrain::Loss loss =
        model->Loss(document.slice(0, 0, -1).unsqueeze(0), document.slice(0, 1).unsqueeze(0));
    loss.sum.backward();
    apart += loss.sum.item<double>();
    count += loss.count;
  }
  EXPECT_EQ(together.count, count);
  // fp32 sums in another order.
  EXPECT_NEAR(together.sum.item<double>(), apart, 1e-5 * apart);
  const auto parameters = model->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_LT((gradients[i] - parameters[i].grad()).abs().max().item<double>(),
              1e-5 * (1 + gradients[i].abs().max().item<double>()))
        << i;
  }
  // The comparison would notice attention across documents.
  EXPECT_GT(std::abs(model->Loss(packed.tokens, packed.targets).sum.item<double>() - apart),
            1e-4 * apart);  // Ten times the tolerance above.
}

TEST_P(GptTest, AttentionKernelsAgree) {
  GptOptions options = Small(GetParam());
  const at::Tensor tokens = at::randint(61, {2, 16}, at::TensorOptions(at::kLong));
  std::vector<at::Tensor> logits;
  for (const auto backend :
       {AttentionBackend::kMath, AttentionBackend::kFlash, AttentionBackend::kAuto}) {
    options.attention_backend = backend;
    at::manual_seed(kSeed);
    Gpt model(options);
    logits.push_back(model->forward(tokens));
  }
  EXPECT_LT((logits[0] - logits[1]).abs().max().item<double>(), 1e-4);
  EXPECT_TRUE(at::equal(logits[1], logits[2]));  // auto is flash on the CPU.
}

TEST_P(GptTest, RecomputedLayersGiveTheSameGradientsWithDropoutAndDocuments) {
  GptOptions options = Small(GetParam());
  options.num_hidden_layers = 4;
  options.residual_dropout = 0.2;
  options.embedding_dropout = 0.1;
  const Packed packed = Pack({at::randint(61, {6}, at::TensorOptions(at::kLong)),
                              at::randint(61, {10}, at::TensorOptions(at::kLong))},
                             16);
  using Mode = dtrain::ActivationCheckpointingConfig::Mode;
  struct Way {
    Mode mode;
    int64_t every;
    int64_t segments;  // The four layers are cut into so many.
  };
  std::vector<at::Tensor> plain;
  for (const Way& way : {Way{Mode::kNone, 1, 0}, Way{Mode::kFull, 1, 4}, Way{Mode::kFull, 2, 2},
                         Way{Mode::kFull, 3, 2}, Way{Mode::kFull, 5, 1},
                         Way{Mode::kSelective, 1, 4}, Way{Mode::kSelective, 3, 2}}) {
    SCOPED_TRACE(::testing::Message()
                 << "mode " << static_cast<int>(way.mode) << ", every " << way.every);
    options.recompute.mode = way.mode;
    options.recompute.every = way.every;
    at::manual_seed(kSeed);
    Gpt model(options);
    const dtrain::Loss loss = model->Loss(packed.tokens, packed.targets, packed.positions);
    EXPECT_EQ(RecomputedSegments(loss.sum), way.segments);
    const std::vector<at::Tensor> gradients = Gradients(*model, loss);
    if (way.mode == Mode::kNone) {
      plain = gradients;
    }
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(at::equal(gradients[i], plain[i])) << i;
    }
  }
}

TEST_P(GptTest, ASequenceLongerThanTheModelsIsRefused) {
  Gpt model(Small(GetParam()));
  try {
    model->forward(at::zeros({1, 33}, at::TensorOptions(at::kLong)));
    FAIL() << "no exception";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("33 tokens"));
    EXPECT_THAT(error.what(), HasSubstr("32 positions"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, GptTest,
                         ::testing::Values(Architecture::kGpt2, Architecture::kLlama,
                                           Architecture::kQwen2, Architecture::kQwen3),
                         [](const auto& instance) { return ModelTypeName(instance.param); });

TEST(CausalAttentionTest, AKernelThatCannotTakeTheTensorsSaysWhy) {
  const at::Tensor q = at::zeros({1, 4, 2, 8});
  for (const auto& [call, what] :
       {std::pair(AttentionCall{.backend = AttentionBackend::kCudnn}, "CUDA"),
        std::pair(AttentionCall{.backend = AttentionBackend::kFlash, .dropout = 0.5}, "dropout")}) {
    try {
      CausalAttention(q, q, q, call);
      FAIL() << what;
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(what));
    }
  }
}

}  // namespace
}  // namespace gpt_test
