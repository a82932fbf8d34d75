#include "runtime/plan/data/mixture.h"

#include <cmath>
#include <limits>
#include <set>

#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/data/token_sampler.h"

namespace dtrain::plan::mixture_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

MixturePattern Pattern(const std::vector<double>& weights) {
  absl::StatusOr<MixturePattern> pattern = MixturePattern::Create(weights);
  EXPECT_TRUE(pattern.ok()) << pattern.status();
  return *std::move(pattern);
}

TEST(MixturePatternTest, EachPartHasItsShareAndNoneRunsAhead) {
  const std::vector<double> weights = {0.5, 3, 0.01, 1.49};
  const MixturePattern pattern = Pattern(weights);
  std::vector<int64_t> drawn(weights.size(), 0);
  for (int64_t n = 0; n < 3 * MixturePattern::kPlaces / 2; ++n) {
    const MixturePattern::Draw draw = pattern.At(n);
    const auto part = static_cast<size_t>(draw.part);
    ASSERT_EQ(draw.index, drawn[part]++) << n;
    for (size_t i = 0; i < weights.size(); ++i) {
      const double share = weights[i] / 5 * static_cast<double>(n + 1);
      ASSERT_LT(static_cast<double>(drawn[i]), share + 2) << "part " << i << " after " << n;
      ASSERT_GT(static_cast<double>(drawn[i]), share - 4) << "part " << i << " after " << n;
    }
  }
}

TEST(MixturePatternTest, SharesAreWholeAndSumToAllPlaces) {
  EXPECT_THAT(Pattern({1}).shares(), ElementsAre(65536));
  EXPECT_THAT(Pattern({1, 3}).shares(), ElementsAre(16384, 49152));
  EXPECT_THAT(Pattern({1, 0, 1}).shares(), ElementsAre(32768, 0, 32768));
  EXPECT_THAT(Pattern({1e-12, 1, 1e-12}).shares(), ElementsAre(1, 65534, 1));
  EXPECT_THAT(Pattern({1, 1, 1}).shares(), ElementsAre(21846, 21845, 21845));
}

TEST(MixturePatternTest, WeightsThatAreNoneAreRefused) {
  const auto why = [](const std::vector<double>& weights) {
    return std::string(MixturePattern::Create(weights).status().message());
  };
  EXPECT_THAT(why({0, 0}), HasSubstr("sum to 0"));
  EXPECT_THAT(why({1, -0.5}), HasSubstr("the weight of part 1 is -0.5"));
  EXPECT_THAT(why({std::nan(""), 1}), HasSubstr("the weight of part 0"));
  EXPECT_THAT(why({std::numeric_limits<double>::max(), std::numeric_limits<double>::max()}),
              HasSubstr("sum to inf"));
  EXPECT_THAT(why({}), HasSubstr("0 parts"));
}

TokenSampler Mixed(const SamplerOptions& options, double weight = 0.25) {
  const std::vector<SamplerPart> parts = {{{801, 401}, 1 - weight}, {{81}, weight}};
  absl::StatusOr<TokenSampler> sampler = TokenSampler::Create(parts, options);
  EXPECT_TRUE(sampler.ok()) << sampler.status();
  return *std::move(sampler);
}

TEST(MixedSamplerTest, EachPartGoesThroughItsOwnEpochs) {
  const TokenSampler sampler = Mixed({.sequence_length = 8, .global_batch = 4, .seed = 3});
  EXPECT_EQ(sampler.windows(), 160);
  std::vector<std::vector<std::pair<int, int64_t>>> small(5);
  std::set<std::pair<int, int64_t>> large;
  for (int64_t n = 0; n < 200; ++n) {
    const SampleLocation at = sampler.At(n / 4, n % 4);
    if (at.file == 2) {
      small[static_cast<size_t>(at.epoch)].emplace_back(at.file, at.offset);
    } else {
      EXPECT_EQ(at.epoch, 0);
      EXPECT_TRUE(large.emplace(at.file, at.offset).second) << "again in the first epoch";
    }
  }
  EXPECT_EQ(large.size(), 150U);  // Three quarters of all samples: each window once.
  for (const auto& epoch : small) {
    EXPECT_EQ((std::set<std::pair<int, int64_t>>(epoch.begin(), epoch.end())).size(), epoch.size());
  }
  EXPECT_EQ(small[0].size(), 10U);
  EXPECT_EQ(small[4].size(), 10U);
  EXPECT_NE(small[0], small[1]);
}

TEST(MixedSamplerTest, TheFirstPartHasTheOrderThatItHasAlone) {
  const SamplerOptions options{.sequence_length = 8, .global_batch = 1, .seed = 11};
  const TokenSampler mixed = Mixed(options, 0.5);
  const TokenSampler alone = *TokenSampler::Create({801, 401}, options);
  int64_t next = 0;
  for (int64_t n = 0; n < 300; ++n) {
    if (const SampleLocation at = mixed.At(n, 0); at.file < 2) {
      EXPECT_EQ(at, alone.At(next++, 0));
    }
  }
  EXPECT_EQ(next, 150);
}

TEST(MixedSamplerTest, EveryWorldSizeReadsTheSameSamples) {
  const TokenSampler sampler = Mixed({.sequence_length = 8, .global_batch = 12, .seed = 5});
  for (const int64_t world : {1, 2, 3, 6}) {
    for (const int64_t step : {0, 7}) {
      std::vector<SampleLocation> all(12);
      for (int64_t micro = 0; micro < 12 / (world * 2); ++micro) {
        for (int64_t rank = 0; rank < world; ++rank) {
          const RankSlice slice{rank, world, 2};
          const auto samples = sampler.MicroBatch(step, micro, slice);
          std::copy(samples.begin(), samples.end(), all.begin() + slice.place(micro) * 2);
        }
      }
      for (int64_t i = 0; i < 12; ++i) {
        EXPECT_EQ(all[static_cast<size_t>(i)], sampler.At(step, i)) << world << " ranks";
      }
    }
  }
}

TEST(MixedSamplerTest, ACursorKeepsTheSharesAndRefusesOthers) {
  const SamplerOptions options{.sequence_length = 8, .global_batch = 4, .seed = 3};
  const TokenSampler sampler = Mixed(options);
  const absl::StatusOr<DataCursor> cursor = DataCursor::FromJson(sampler.CursorAt(9).ToJson());
  ASSERT_TRUE(cursor.ok()) << cursor.status();
  EXPECT_EQ(*cursor, sampler.CursorAt(9));
  EXPECT_TRUE(sampler.CheckCursor(*cursor).ok());
  const absl::Status other = Mixed(options, 0.5).CheckCursor(*cursor);
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(other.message(), HasSubstr("49152 of 65536, 16384 of 65536"));
  const TokenSampler alone = *TokenSampler::Create({801, 401, 81}, options);
  EXPECT_FALSE(alone.CheckCursor(*cursor).ok());
  EXPECT_FALSE(alone.CursorAt(9).ToJson().contains("mixture")) << "older cursors have none";
}

TEST(MixedSamplerTest, APartWithoutAWindowIsNamed) {
  const std::vector<SamplerPart> parts = {{{801}, 1}, {{8}, 1}};
  const auto sampler = TokenSampler::Create(parts, {.sequence_length = 8, .global_batch = 1});
  EXPECT_THAT(sampler.status().message(), HasSubstr("8 tokens in 1 files of part 1"));
  const std::vector<SamplerPart> unused = {{{801}, 1}, {{8}, 0}};
  EXPECT_TRUE(TokenSampler::Create(unused, {.sequence_length = 8, .global_batch = 1}).ok());
}

}  // namespace
}  // namespace dtrain::plan::mixture_test
