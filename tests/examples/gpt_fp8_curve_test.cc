// Training in FP8 beside bf16: the same small models from the same weights on the same tokens, by
// the CPU's emulation (gpt_fp8_test) and by a GPU's FP8 units (gpt_engine_gpu_test).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/examples/fp8_curve.h"
#include "tests/examples/training_place.h"
#include "tests/runtime/testing/operation_count.h"

namespace gpt_fp8_curve_test {
namespace {

// Forwards that the host makes itself: with graphs two steps, one that warms up and one captured.
int ForwardsOfHost() {
  return TrainingPlace::Scale().fp8_by_graphs ? 4 : TrainingPlace::Scale().fp8_steps;
}

struct Form {
  const char* scaling;
  const char* gradients;
};

// Every form, or, where not every pair is trained, two of an architecture and the other two of the
// other: each scaling and each format with both.
std::vector<Form> FormsOf(Architecture architecture) {
  const std::vector<Form> same = {{"tensorwise", "e5m2"}, {"rowwise", "e4m3"}};
  std::vector<Form> crossed = {{"tensorwise", "e4m3"}, {"rowwise", "e5m2"}};
  if (TrainingPlace::Scale().every_pair) {
    crossed.insert(crossed.end(), same.begin(), same.end());
    return crossed;
  }
  return architecture == Architecture::kGpt2 ? same : crossed;
}

GptTraining CurveTraining(Architecture architecture, std::vector<std::string> settings) {
  const TrainingScale& scale = TrainingPlace::Scale();
  if (scale.fp8_by_graphs) {
    settings.emplace_back("cuda_graphs=true");
  }
  return Fp8CurveTraining(architecture, scale.fp8_steps, settings);
}

class GptFp8CurveTest : public ::testing::TestWithParam<Architecture> {
 protected:
  void SetUp() override {
    const absl::Status here = TrainingPlace::Here();
    if (absl::IsUnavailable(here)) {
      GTEST_SKIP() << here.message();
    }
    ASSERT_TRUE(here.ok()) << here;
  }
};

TEST_P(GptFp8CurveTest, EndsWhereBf16Ends) {
  constexpr size_t kEnd = 50;  // Steps whose mean is compared: one batch is by chance harder.
  const auto bf16 = TrainGptHere(CurveTraining(GetParam(), {}));
  ASSERT_TRUE(bf16.ok()) << bf16.status();
  const double end = MeanOfLast(bf16->losses, kEnd);
  ASSERT_LT(end, 0.5 * bf16->losses[0]) << "the model must have learnt something to be compared";
  for (const auto& [scaling, gradients] : FormsOf(GetParam())) {
    SCOPED_TRACE(std::string(scaling) + ", gradients in " + gradients);
    const dtrain::testing::OperationCount products({"dtrain::fp8_linear"});
    const auto fp8 = TrainGptHere(
        CurveTraining(GetParam(), {"fp8.enabled=true", std::string("fp8.scaling=") + scaling,
                                   std::string("fp8.gradients=") + gradients}));
    if (absl::StrContains(fp8.status().message(), "needs a GPU with FP8 units")) {
      std::fprintf(stderr, "*** SKIPPED: FP8: %s ***\n",
                   std::string(fp8.status().message()).c_str());
      GTEST_SKIP() << fp8.status().message();
    }
    ASSERT_TRUE(fp8.ok()) << fp8.status();
    // Each of two layers has four products: of q, k and v, after attention, and the MLP's two.
    EXPECT_EQ(products.Count(), ForwardsOfHost() * 2 * 4);
    EXPECT_NE(fp8->losses, bf16->losses) << "nothing was rounded";
    // Before anything is learnt, e4m3's 2^-4 of each factor averages out over the logits.
    EXPECT_NEAR(fp8->losses[0], bf16->losses[0], 0.02);
    const double gap = MeanOfLast(fp8->losses, kEnd) / end - 1;
    std::printf("%s, %s, gradients in %s: %+.3f%% of bf16's %.4f after %zu steps\n",
                ModelTypeName(GetParam()), scaling, gradients, 100 * gap, end, fp8->losses.size());
    EXPECT_LE(std::abs(gap), TrainingPlace::Scale().fp8_gap);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GptFp8CurveTest,
                         ::testing::Values(Architecture::kGpt2, Architecture::kLlama),
                         [](const auto& instance) { return ModelTypeName(instance.param); });

}  // namespace
}  // namespace gpt_fp8_curve_test
