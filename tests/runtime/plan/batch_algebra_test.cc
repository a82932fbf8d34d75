#include "runtime/plan/config/batch_algebra.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::batch_algebra_test {
namespace {

using ::testing::HasSubstr;

std::string Failure(const BatchRequest& request, int64_t world_size) {
  return std::string(SolveBatch(request, world_size).status().message());
}

TEST(BatchAlgebraTest, ErrorNamesAllFourNumbersAndTheNearestSizes) {
  EXPECT_EQ(Failure({500, 4, std::nullopt}, 24),
            "train_batch_size 500 is not a multiple of micro-batch 4 x 24 ranks = 96; nearest: 480 "
            "or 576 (train_batch_size 500, train_micro_batch_size_per_gpu 4, "
            "gradient_accumulation_steps unset, world size 24)");
  EXPECT_THAT(Failure({50, 4, std::nullopt}, 24), HasSubstr("= 96; nearest: 96 ("));
  EXPECT_THAT(Failure({10, std::nullopt, 3}, 2),
              HasSubstr("not a multiple of accumulation 3 x 2 ranks = 6; nearest: 6 or 12"));
  EXPECT_THAT(Failure({7, std::nullopt, std::nullopt}, 2), HasSubstr("nearest: 6 or 8"));
  EXPECT_EQ(Failure({32, 4, 2}, 2),
            "train_batch_size 32 is not micro-batch 4 x accumulation 2 x 2 ranks = 16; set "
            "train_batch_size 16, or gradient_accumulation_steps 4 (train_batch_size 32, "
            "train_micro_batch_size_per_gpu 4, gradient_accumulation_steps 2, world size 2)");
  EXPECT_THAT(Failure({std::nullopt, std::nullopt, 2}, 2),
              HasSubstr("set train_batch_size or train_micro_batch_size_per_gpu"));
  EXPECT_THAT(Failure({std::nullopt, std::nullopt, std::nullopt}, 2), HasSubstr("world size 2"));
  EXPECT_THAT(Failure({std::nullopt, 0, std::nullopt}, 2),
              HasSubstr("train_micro_batch_size_per_gpu is 0"));
  EXPECT_THAT(Failure({std::nullopt, 1LL << 31, 1LL << 31}, 1 << 20), HasSubstr("larger than"));
}

TEST(BatchAlgebraTest, TakesBatchesUpToTwoToThe31) {
  const int64_t most = 1LL << 31;
  EXPECT_EQ(SolveBatch({most, std::nullopt, std::nullopt}, 2)->micro_batch, most / 2);
  EXPECT_EQ(SolveBatch({std::nullopt, most / 4, 2}, 2)->train_batch, most);
  EXPECT_THAT(Failure({most + 1, std::nullopt, std::nullopt}, 1),
              HasSubstr("train_batch_size is 2147483649; it must be from 1 to 2^31"));
  EXPECT_THAT(Failure({std::nullopt, most / 2, 2}, 2), HasSubstr("larger than 2^31"));
  EXPECT_THAT(Failure({std::nullopt, 1, 0}, 2), HasSubstr("gradient_accumulation_steps is 0"));
}

// Against DeepSpeed's own rule: derive by floor division, then demand T == M * G * W and all > 0.
TEST(BatchAlgebraTest, AcceptsExactlyWhatTheReferenceAccepts) {
  const auto absent = std::optional<int64_t>();
  int solved = 0;
  for (int64_t world = 1; world <= 4; ++world) {
    for (int64_t t = 0; t <= 12; ++t) {
      for (int64_t m = 0; m <= 6; ++m) {
        for (int64_t g = 0; g <= 4; ++g) {  // 0 stands for absent.
          int64_t train = t;
          int64_t micro = m;
          int64_t steps = g;
          if (t && m && !g) {
            steps = t / m / world;
          } else if (t && !m && g) {
            micro = t / world / g;
          } else if (!t && m) {
            steps = g ? g : 1;
            train = m * steps * world;
          } else if (t && !m && !g) {
            steps = 1;
            micro = t / world;
          }
          const bool fits = train > 0 && micro > 0 && steps > 0 && train == micro * steps * world;
          const absl::StatusOr<BatchSizes> sizes =
              SolveBatch({t ? std::optional(t) : absent, m ? std::optional(m) : absent,
                          g ? std::optional(g) : absent},
                         world);
          ASSERT_EQ(sizes.ok(), fits) << t << " " << m << " " << g << " " << world;
          if (fits) {
            ASSERT_EQ(sizes->train_batch, train);
            ASSERT_EQ(sizes->micro_batch, micro);
            ASSERT_EQ(sizes->accumulation, steps);
            ++solved;
          }
        }
      }
    }
  }
  EXPECT_GT(solved, 100);
}

}  // namespace
}  // namespace dtrain::plan::batch_algebra_test
