#include "bench/mfu/facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/mfu/report.h"

namespace dtrain::bench::facts_test {
namespace {

using ::testing::HasSubstr;

void Took(MfuFacts& facts, double step_seconds) {
  facts.step_seconds = {step_seconds};
  facts.measured_s = step_seconds;
}

// Qwen2.5-7B on one H100 at 13,863 tokens/s: the worked example of docs/PERFORMANCE.md.
MfuFacts Qwen7B() {
  MfuFacts facts;
  facts.model = "qwen2.5-7b";
  facts.dtype = "bf16";
  facts.shape = {.parameters = 7615616512,
                 .vocabulary = 152064,
                 .hidden = 3584,
                 .layers = 28,
                 .query_heads = 28,
                 .head_dim = 128};
  facts.sequence.length = 1024;
  facts.micro_batch = 4;
  facts.accumulation = 128;
  facts.device = "NVIDIA H100 80GB HBM3";
  facts.on_gpu = true;
  facts.peak_flops_per_s = 989.4e12;
  facts.gemm_flops_per_s = 798e12;
  facts.gemm_size = 8192;
  facts.copy_bytes_per_s = 3e12;
  Took(facts, 524288 / 13863.0);
  return facts;
}

TEST(MfuFacts, StrictAndPalmAreThoseOfTheWorkedExample) {
  const MfuFacts facts = Qwen7B();
  EXPECT_NEAR(TokensPerSecond(facts), 13863, 1e-6);
  EXPECT_NEAR(StrictMfu(facts), 0.603, 5e-4);
  EXPECT_NEAR(PalmMfu(facts), 0.658, 5e-4);
  EXPECT_NEAR(GemmFraction(facts), 596.7 / 798, 5e-4);
}

TEST(MfuFacts, HfuEqualsMfuUntilSomethingIsComputedTwice) {
  MfuFacts facts = Qwen7B();
  EXPECT_DOUBLE_EQ(Hfu(facts), StrictMfu(facts));
  // All 28 blocks: what is in products without the untied head.
  facts.recomputed_parameters = StrictParameters(facts.shape) - 152064.0 * 3584;
  facts.recomputed_width = AttentionWidth(facts.shape);
  EXPECT_NEAR(Hfu(facts), 0.789, 5e-4);
}

// The FP8 run of the worked example: the layers in FP8, the head and attention in bf16.
TEST(MfuFacts, WithFp8EachTypeCountsAtItsOwnPeak) {
  MfuFacts facts = Qwen7B();
  EXPECT_EQ(SpeedOfLightFraction(facts), 0) << "one type alone: MFU says it";
  facts.dtype = "fp8";
  Took(facts, 524288 / 19194.0);
  facts.peak_flops_per_s = 1978.9e12;
  facts.high_peak_flops_per_s = 989.4e12;
  facts.low_parameters = StrictParameters(facts.shape) - 152064.0 * 3584;
  EXPECT_NEAR(StrictMfu(facts), 0.417, 5e-4);
  EXPECT_NEAR(SpeedOfLightFraction(facts), 0.455, 5e-4);
  EXPECT_THAT(MfuTable(facts), HasSubstr("each type at its peak (SOL) 45.5 %"));
}

TEST(MfuFacts, RanksShareTheTokensAndThePeak) {
  MfuFacts facts = Qwen7B();
  const double alone = StrictMfu(facts);
  facts.ranks = 8;  // Eight times the tokens in the same time.
  EXPECT_DOUBLE_EQ(StrictMfu(facts), alone);
  Took(facts, 2 * StepSeconds(facts));
  EXPECT_DOUBLE_EQ(StrictMfu(facts), alone / 2);
}

TEST(MfuFacts, TheMedianStepOfACpuCounts) {
  MfuFacts facts = Qwen7B();
  facts.on_gpu = false;
  facts.step_seconds = {9, 1, 2};
  EXPECT_DOUBLE_EQ(StepSeconds(facts), 2);
  facts.step_seconds = {9, 1, 2, 4};
  EXPECT_DOUBLE_EQ(StepSeconds(facts), 3);
}

TEST(MfuFacts, OfAGpuAllStepsCountByOneClock) {
  MfuFacts facts = Qwen7B();
  facts.step_seconds = {0.1, 2, 2};  // Calls; the third step goes on behind the last.
  facts.measured_s = 6;
  EXPECT_DOUBLE_EQ(StepSeconds(facts), 2);
  EXPECT_THAT(MfuTable(facts), HasSubstr("mean of 3 steps of 2.000 s"));
}

TEST(MfuReport, NamesEveryKindOfMfuAndItsPeak) {
  MfuFacts facts = Qwen7B();
  facts.peak_source = "a datasheet";
  const std::string table = MfuTable(facts);
  EXPECT_THAT(table, HasSubstr("MFU (strict)"));
  EXPECT_THAT(table, HasSubstr("60.3 %"));
  EXPECT_THAT(table, HasSubstr("PaLM-style MFU"));
  EXPECT_THAT(table, HasSubstr("65.8 %"));
  EXPECT_THAT(table, HasSubstr("HFU"));
  EXPECT_THAT(table, HasSubstr("989.4 TFLOP/s: a datasheet"));
}

TEST(MfuReport, OfACpuTheMeasuredRateIsNamedAsThePeak) {
  MfuFacts facts = Qwen7B();
  facts.on_gpu = false;
  EXPECT_THAT(MfuTable(facts), HasSubstr("MFU (strict) of GEMM rate"));
}

// Products that other programs slowed down say nothing of the step, which was faster.
TEST(MfuReport, OfDisturbedProductsNoShareIsShown) {
  MfuFacts facts = Qwen7B();
  facts.gemm_flops_per_s = 500e12;  // The step has 596.7.
  EXPECT_TRUE(GemmRateIsDisturbed(facts));
  EXPECT_FALSE(PeakIsDisturbed(facts)) << "a datasheet's is not";
  EXPECT_THAT(MfuTable(facts), HasSubstr("strict fraction of it unknown"));
  EXPECT_THAT(MfuTable(facts), HasSubstr("60.3 %"));
  EXPECT_TRUE(MfuJson(facts)["gemm_fraction"].is_null());
  EXPECT_NEAR(MfuJson(facts)["mfu_strict"].get<double>(), 0.603, 5e-4);
  facts.on_gpu = false;
  facts.peak_flops_per_s = facts.gemm_flops_per_s;
  facts.peak_is_gemm_rate = true;
  EXPECT_THAT(MfuTable(facts), HasSubstr("MFU (strict) of GEMM rate   unknown: other programs"));
  for (const char* const share : {"mfu_strict", "mfu_palm", "hfu", "gemm_fraction"}) {
    EXPECT_TRUE(MfuJson(facts)[share].is_null()) << share;
  }
  facts.gemm_flops_per_s = facts.peak_flops_per_s = 700e12;
  EXPECT_NEAR(MfuJson(facts)["mfu_strict"].get<double>(), 596.7 / 700, 5e-4);
}

TEST(MfuReport, JsonHasWhatTheTableHas) {
  MfuFacts facts = Qwen7B();
  facts.breakdown.seconds[static_cast<int>(Work::kGemm)] = 3;
  facts.breakdown.seconds[static_cast<int>(Work::kIdle)] = 1;
  const Json json = MfuJson(facts);
  EXPECT_NEAR(json["mfu_strict"].get<double>(), 0.603, 5e-4);
  EXPECT_NEAR(json["flop_per_token_strict"].get<double>(), 43.0403e9, 1e5);
  EXPECT_EQ(json["schema"], 1);
  EXPECT_DOUBLE_EQ(json["breakdown"]["GEMM"]["share"].get<double>(), 0.75);
}

}  // namespace
}  // namespace dtrain::bench::facts_test
