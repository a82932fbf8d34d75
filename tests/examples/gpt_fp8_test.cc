// Training in FP8 beside bf16: the same small model from the same weights on the same tokens. On a
// CPU the products are emulated, with the codes and scales that a GPU would multiply.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gpt/gpt.h"
#include "runtime/ops/fp8_weight_codes.h"
#include "tests/runtime/job_for_tests.h"
#include "tests/runtime/operation_count.h"

namespace {

constexpr uint64_t kSeed = 5;
constexpr int kSteps = 60;
constexpr int64_t kBatch = 8;
constexpr int64_t kSequence = 32;

GptOptions Small(const dtrain::Config& config) {
  GptOptions options;
  options.vocab_size = 64;
  options.hidden_size = 64;
  options.intermediate_size = 128;
  options.num_hidden_layers = 2;
  options.num_attention_heads = 4;
  options.num_key_value_heads = 2;
  options.head_dim = 16;
  options.max_position_embeddings = kSequence;
  options.fp8 = dtrain::Fp8OptionsOf(config);
  options.recompute = config.activation_checkpointing();
  return options;
}

// Every token follows from the one before it, one time in eight from chance: about 0.9 nats remain,
// and log(64) = 4.16 is where training starts.
struct Tokens {
  at::Generator generator = at::detail::createCPUGenerator(kSeed);

  absl::StatusOr<dtrain::Batch> Next() {
    const auto options = at::TensorOptions().dtype(at::kLong);
    at::Tensor rows = at::randint(64, {kBatch, kSequence + 1}, generator, options);
    const at::Tensor chance = at::randint(8, rows.sizes(), generator, options).eq(0);
    for (int64_t i = 1; i <= kSequence; ++i) {
      const at::Tensor follows = (rows.select(1, i - 1) * 5 + 7) % 64;
      rows.select(1, i).copy_(at::where(chance.select(1, i), rows.select(1, i), follows));
    }
    return dtrain::Batch{rows.slice(1, 0, kSequence).contiguous(), rows.slice(1, 1).contiguous()};
  }
};

// The losses of a run, by the engine; what is not in FP8 is in bf16.
std::vector<double> LossesOf(const std::vector<std::string>& settings, int steps = kSteps) {
  std::vector<std::string> overrides = {
      "bf16.enabled=true", "gradient_clipping=1.0", "train_micro_batch_size_per_gpu=8",
      R"(optimizer={"type":"AdamW","params":{"lr":0.004,"weight_decay":0.01}})"};
  overrides.insert(overrides.end(), settings.begin(), settings.end());
  const dtrain::testing::TempFolder folder;
  auto job = dtrain::testing::MakeTestJob({.run_dir = folder.path(), .overrides = overrides});
  EXPECT_TRUE(job.ok()) << job.status();
  at::manual_seed(kSeed);
  Gpt model(Small((*job)->config()));
  auto engine = dtrain::Engine::Create(**job, *model);
  EXPECT_TRUE(engine.ok()) << engine.status();
  Tokens tokens;
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    const auto report =
        (*engine)->Step(tokens, [&](const dtrain::Batch& batch) { return model->Loss(batch); });
    EXPECT_TRUE(report.ok()) << report.status();
    losses.push_back(report->loss);
  }
  return losses;
}

double MeanOfLast(const std::vector<double>& losses, size_t count) {
  double sum = 0;
  for (size_t i = losses.size() - count; i < losses.size(); ++i) {
    sum += losses[i];
  }
  return sum / static_cast<double>(count);
}

TEST(GptFp8Test, TheLossCurveFollowsThatOfBf16) {
  std::printf("seed %d\n", static_cast<int>(kSeed));
  const std::vector<double> bf16 = LossesOf({});
  const double end = MeanOfLast(bf16, 10);
  ASSERT_LT(end, 0.75 * bf16[0]) << "the model must have learnt something to be compared";
  for (const char* const scaling : {"tensorwise", "rowwise"}) {
    for (const char* const gradients : {"e5m2", "e4m3"}) {
      SCOPED_TRACE(std::string(scaling) + ", gradients in " + gradients);
      const dtrain::testing::OperationCount products({"dtrain::fp8_linear"});
      const std::vector<double> fp8 =
          LossesOf({"fp8.enabled=true", std::string("fp8.scaling=") + scaling,
                    std::string("fp8.gradients=") + gradients});
      EXPECT_EQ(products.Count(), kSteps * 2 * 4) << "q, k and v are one product, gate and up too";
      EXPECT_NE(fp8, bf16) << "nothing was rounded";
      // Before anything is learnt, e4m3's 2^-4 of each factor averages out over the logits.
      EXPECT_NEAR(fp8[0], bf16[0], 0.02);
      std::printf("%s %s: %.4f, bf16 %.4f\n", scaling, gradients, MeanOfLast(fp8, 10), end);
      EXPECT_LT(MeanOfLast(fp8, 10), 1.05 * end);
    }
  }
}

// Steps of three micro-batches; how often codes of a weight were made.
std::vector<double> LossesAndCodes(std::vector<std::string> settings, int steps, int& made) {
  settings.insert(settings.end(), {"fp8.enabled=true", "gradient_accumulation_steps=3"});
  const dtrain::testing::OperationCount codes({"dtrain::fp8_weight_codes"});
  std::vector<double> losses = LossesOf(settings, steps);
  made = codes.Count();
  return losses;
}

TEST(GptFp8Test, MicroBatchesShareTheCodesOfWeightsThatStayWhole) {
  constexpr int kFewSteps = 4;
  constexpr int kProducts = 2 * 4;  // Four a layer; each wants codes as they are and transposed.
  struct Case {
    std::vector<std::string> settings;
    int forms;  // Codes of one product in one micro-batch that makes its own.
    bool shared;
  };
  for (const Case& test :
       {Case{{"zero_optimization.stage=0"}, 2, true},
        Case{{"zero_optimization.stage=1", "fp8.scaling=rowwise"}, 2, true},
        Case{{"zero_optimization.stage=2", "activation_checkpointing.mode=full"}, 3, true},
        Case{{"zero_optimization.stage=3"}, 2, false}}) {
    SCOPED_TRACE(test.settings[0]);
    int made = 0;
    int made_each_time = 0;
    const auto losses = LossesAndCodes(test.settings, kFewSteps, made);
    {
      const dtrain::ops::WithoutKeptCodes fresh;
      EXPECT_EQ(losses, LossesAndCodes(test.settings, kFewSteps, made_each_time));
    }
    EXPECT_NE(losses.front(), losses.back()) << "updates change weights, and so their codes";
    EXPECT_EQ(made_each_time, kFewSteps * 3 * kProducts * test.forms);
    EXPECT_EQ(made, test.shared ? kFewSteps * kProducts * 2 : made_each_time);
  }
}

TEST(GptFp8Test, NeedsBf16AndSaysSo) {
  const dtrain::testing::TempFolder folder;
  const auto job = dtrain::testing::MakeTestJob(
      {.run_dir = folder.path(),
       .overrides = {"train_micro_batch_size_per_gpu=8", "fp8.enabled=true"}});
  EXPECT_THAT(job.status().message(), ::testing::HasSubstr("fp8.enabled needs bf16.enabled"));
}

}  // namespace
