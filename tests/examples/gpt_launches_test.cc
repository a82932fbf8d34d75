// How many kernels a step of the FP8 Transformer gives to a GPU, counted over the fakes: their
// number depends on layers and options, not on widths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/examples/gpt_training.h"
#include "tests/examples/small_gpt.h"
#include "tests/runtime/fake_device.h"

namespace gpt_launches_test {
namespace {

// Qwen2.5 3B as `dtrain bench mfu` trains it: biases of query, key and value, tied embeddings.
constexpr int64_t kLayers = 36;
constexpr int kMicroBatches = 2;

// Of one step, whose weights have no FP8 codes yet.
int64_t Launches(int64_t layers, int micro_batches) {
  GptTraining training;
  training.options =
      SmallGpt(Architecture::kQwen2,
               {.vocabulary = 64, .heads = 4, .head_dim = 16, .intermediate = 64, .positions = 16});
  training.options.attention_bias = true;
  training.options.tie_word_embeddings = true;
  training.options.num_hidden_layers = layers;
  training.settings = {"bf16.enabled=true", "fp8.enabled=true",
                       "gradient_accumulation_steps=" + std::to_string(micro_batches)};
  training.batches = RandomBatches(micro_batches, 1, 16, 64);
  training.steps = 3;
  training.watched_step = 2;
  const auto outcome = TrainGptHere(training);
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  return outcome.ok() ? outcome->costs.launches : 0;
}

TEST(GptLaunchesTest, AnFp8StepOf3bTakesAThirdOfWhatScalesByOperationsTook) {
  const int64_t one = Launches(1, kMicroBatches);
  if (!dtrain::testing::FakeKernelsAreEmulated()) {
    GTEST_SKIP() << "launches are counted on the emulated device";
  }
  const int64_t each = Launches(2, kMicroBatches) - one;
  EXPECT_EQ(Launches(3, kMicroBatches), one + 2 * each) << "a layer takes as many as another";
  const int64_t step = one + (kLayers - 1) * each;
  // Of another micro-batch, which finds the codes of weights.
  const int64_t layer = Launches(2, 3) - Launches(1, 3) - each;
  std::printf(
      "%ld launches a step of %d micro-batches: %ld a layer, %ld a layer of another micro-batch\n",
      step, kMicroBatches, each, layer);
}

}  // namespace
}  // namespace gpt_launches_test
