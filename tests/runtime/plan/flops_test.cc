#include "dtrain/flops.h"

#include "gtest/gtest.h"

namespace dtrain::flops_test {
namespace {

constexpr double kH100 = 989.4e12;

struct Example {
  const char* name;
  FlopModel model;
  double length;
  double strict_giga;
  double palm_giga;
  double tokens_per_second;
  double strict_percent;
  double palm_percent;
};

// Published shapes; the figures are worked out by hand to the digits shown.
const Example kExamples[] = {{"Qwen2.5-0.5B",
                              {494032768, 151936, 896, 24, 14, 64, 0, true},
                              1024,
                              3.0963,
                              3.2284,
                              149000,
                              46.6,
                              48.6},
                             {"Qwen2.5-1.5B",
                              {1543714304, 151936, 1536, 28, 12, 128, 0, true},
                              1024,
                              9.5265,
                              9.7908,
                              58800,
                              56.6,
                              58.2},
                             {"Qwen2.5-3B",
                              {3085938688, 151936, 2048, 36, 16, 128, 0, true},
                              1024,
                              18.9686,
                              19.4216,
                              30958,
                              59.4,
                              60.8},
                             {"Qwen2.5-7B",
                              {7615616512, 152064, 3584, 28, 28, 128, 0, false},
                              1024,
                              43.0403,
                              46.9268,
                              13863,
                              60.3,
                              65.8}};

TEST(FlopsTest, HasTheWorkedExamples) {
  for (const Example& example : kExamples) {
    const FlopSequence sequence{.length = example.length};
    const double strict = StrictFlopsPerToken(example.model, sequence);
    const double palm = PalmFlopsPerToken(example.model, sequence);
    EXPECT_NEAR(strict / 1e9, example.strict_giga, 5e-5) << example.name;
    EXPECT_NEAR(palm / 1e9, example.palm_giga, 5e-5) << example.name;
    EXPECT_NEAR(100 * Utilization(strict, example.tokens_per_second, 1, kH100),
                example.strict_percent, 0.05)
        << example.name;
    EXPECT_NEAR(100 * Utilization(palm, example.tokens_per_second, 1, kH100), example.palm_percent,
                0.06)
        << example.name;
  }
}

TEST(FlopsTest, LlamaAtEightThousandTokens) {
  const FlopModel llama{8030261248, 128256, 4096, 32, 32, 128, 0, false};
  const FlopSequence sequence{.length = 8192};
  const double strict = StrictFlopsPerToken(llama, sequence);
  EXPECT_NEAR(strict / 1e9, 51.4720, 5e-5);
  EXPECT_NEAR(PalmFlopsPerToken(llama, sequence) / 1e9, 61.0665, 5e-5);
  EXPECT_NEAR(strict * 14451 / 1e12, 743.8, 0.05);
  EXPECT_NEAR(100 * Utilization(strict, 14451, 1, 1978.9e12), 37.6, 0.05);
}

TEST(FlopsTest, RecomputeAndMixedPrecisionOfTheSevenBillionModel) {
  const FlopModel& model = kExamples[3].model;
  const FlopSequence sequence{.length = 1024};
  EXPECT_EQ(StrictParameters(model), 7070619136);
  EXPECT_EQ(AttentionWidth(model), 100352);
  const double blocks = StrictParameters(model) - 152064.0 * 3584;  // Without the untied head.
  const double again = RecomputedFlopsPerToken(blocks, AttentionWidth(model), sequence);
  EXPECT_NEAR(again / 1e9, 13.257, 5e-4);
  const double strict = StrictFlopsPerToken(model, sequence);
  EXPECT_NEAR(100 * Utilization(strict + again, 13863, 1, kH100), 78.9, 0.05);
  EXPECT_NEAR(strict * 19194 / 1e12, 826, 0.5);
  EXPECT_NEAR(100 * SpeedOfLight(model, sequence, blocks, 19194, 1, 1978.9e12, kH100), 45.5, 0.1);
  // With nothing in low precision it is STRICT.
  EXPECT_NEAR(SpeedOfLight(model, sequence, 0, 13863, 1, 1978.9e12, kH100),
              Utilization(strict, 13863, 1, kH100), 1e-12);
}

TEST(FlopsTest, AttentionCountsTheKeysThatAreSeen) {
  EXPECT_EQ(MeanKeys({.length = 100}), 50);
  EXPECT_EQ(MeanKeys({.length = 100, .causal = false}), 100);
  // Two documents of 50 packed into 100: as sequences of 50.
  EXPECT_EQ(MeanKeys({.length = 100, .sum_length = 100, .sum_length_squared = 5000}), 25);
}

TEST(FlopsTest, LookedUpTablesDoNotCount) {
  const FlopModel untied{1000, 10, 20, 1, 1, 1, 30, false};
  EXPECT_EQ(StrictParameters(untied), 1000 - 200 - 30);
  FlopModel tied = untied;
  tied.tied = true;
  EXPECT_EQ(StrictParameters(tied), 1000 - 30);
}

}  // namespace
}  // namespace dtrain::flops_test
