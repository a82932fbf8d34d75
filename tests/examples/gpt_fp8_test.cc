// FP8 in the engine: micro-batches share the codes of weights, and what it needs is said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/ops/fp8_weight_codes.h"
#include "tests/examples/fp8_curve.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/runtime/testing/operation_count.h"

namespace gpt_fp8_test {
namespace {

// Steps of three micro-batches; how often codes of a weight were made.
std::vector<double> LossesAndCodes(std::vector<std::string> settings, int steps, int& made) {
  settings.insert(settings.end(), {"fp8.enabled=true", "gradient_accumulation_steps=3"});
  const dtrain::testing::OperationCount codes({"dtrain::fp8_weight_codes"});
  GptTraining training = Fp8CurveTraining(Architecture::kLlama, 3 * steps, settings);
  training.steps = steps;
  const auto outcome = TrainGpt(training, nullptr);
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  made = codes.Count();
  return outcome.ok() ? outcome->losses : std::vector<double>{0};
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
}  // namespace gpt_fp8_test
