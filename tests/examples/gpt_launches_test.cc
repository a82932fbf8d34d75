// How many kernels a step of the FP8 Transformer gives to a GPU, counted over the fakes: their
// number depends on layers and options, not on widths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "tests/examples/gpt_training.h"
#include "tests/examples/small_gpt.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/launch_count.h"

namespace gpt_launches_test {
namespace {

// Qwen2.5 3B as `dtrain bench mfu` trains it: biases of query, key and value, tied embeddings.
constexpr int64_t kLayers = 36;

// Counts one step, which begins without FP8 codes of weights.
StepCosts CostsOf(int64_t layers, int micro_batches) {
  GptTraining training;
  training.options =
      SmallGpt(Architecture::kQwen2,
               {.vocabulary = 64, .heads = 4, .head_dim = 16, .intermediate = 64, .positions = 16});
  training.options.attention_bias = true;
  training.options.tie_word_embeddings = true;
  training.options.num_hidden_layers = layers;
  training.settings = {"bf16.enabled=true", "fp8.enabled=true",
                       absl::StrCat("gradient_accumulation_steps=", micro_batches)};
  training.batches = RandomBatches(micro_batches, 1, 16, 64);
  training.steps = 3;
  training.watched_step = 2;
  const auto outcome = TrainGptHere(training);
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  return outcome.ok() ? outcome->costs : StepCosts{};
}

// A scale and its inverse by operations on numbers of one element, behind a fill and a kernel for
// the largest magnitude.
int64_t LaunchesOfAScaleByOperations() {
  const at::Tensor amax = at::ones({});
  const dtrain::testing::LaunchCount count;
  at::Tensor scale = at::reciprocal(amax) * 448.0;
  scale = at::where(scale.isfinite().logical_and(scale > 0), scale, 1.0);
  const at::Tensor inverse = at::reciprocal(scale) + amax * 0;
  return 2 + count.count();
}

// A step of these micro-batches as it was counted when scales were made by operations.
constexpr int64_t kLaunchesWithScalesByOperations = 13725;

TEST(GptLaunchesTest, AnFp8StepOf3bTakesAThirdOfWhatItDoesWithScalesByOperations) {
  constexpr int kMicroBatches = 2;
  const StepCosts one = CostsOf(1, kMicroBatches);
  if (!dtrain::testing::FakeKernelsAreEmulated()) {
    GTEST_SKIP() << "launches are counted on the emulated device";
  }
  const StepCosts two = CostsOf(2, kMicroBatches);
  const StepCosts three = CostsOf(3, kMicroBatches);
  const int64_t layer = two.launches - one.launches;
  const int64_t scales = two.fp8_scales - one.fp8_scales;
  EXPECT_EQ(three.launches - two.launches, layer) << "a layer takes as many as another";
  EXPECT_EQ(scales, 4 * (2 * kMicroBatches + 1)) << "of x and of its gradient; of weights once";
  const int64_t step = one.launches + (kLayers - 1) * layer;
  const int64_t by_operations =
      step + (one.fp8_scales + (kLayers - 1) * scales) * (LaunchesOfAScaleByOperations() - 1);
  std::printf(
      "%ld launches of a step of %d micro-batches, %ld of a layer; with scales by operations %ld\n",
      step, kMicroBatches, layer, by_operations);
  EXPECT_LE(3 * step, by_operations);
  EXPECT_LE(3 * step, kLaunchesWithScalesByOperations) << "a step takes more launches than before";
}

}  // namespace
}  // namespace gpt_launches_test
