#include "runtime/plan/data/token_sampler.h"

#include <map>
#include <set>
#include <tuple>

#include "base/numeric/prng.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::token_sampler_test {
namespace {

using ::testing::HasSubstr;

TokenSampler Sampler(const std::vector<int64_t>& tokens, const SamplerOptions& options,
                     std::vector<SkipRange> skip = {}) {
  absl::StatusOr<TokenSampler> sampler = TokenSampler::Create(tokens, options, std::move(skip));
  EXPECT_TRUE(sampler.ok()) << sampler.status();
  return *std::move(sampler);
}

TEST(TokenSamplerTest, WindowsShareTheirBorderTokenAndNeverCrossAFile) {
  // 9 tokens: windows [0, 4], [4, 8]; 8 tokens: one window, since the second needs token 8.
  const TokenSampler sampler =
      Sampler({9, 4, 8}, {.sequence_length = 4, .global_batch = 1, .seed = 0, .shuffle = false});
  EXPECT_EQ(sampler.windows(), 3);
  EXPECT_EQ(sampler.At(0, 0), (SampleLocation{0, 0, 0}));
  EXPECT_EQ(sampler.At(1, 0), (SampleLocation{0, 4, 0}));
  EXPECT_EQ(sampler.At(2, 0), (SampleLocation{2, 0, 0}));
  EXPECT_EQ(sampler.At(3, 0), (SampleLocation{0, 0, 1}));
}

TEST(TokenSamplerTest, EachEpochIsAnotherPermutationOfAllWindows) {
  for (const int64_t files : {1, 3}) {
    for (const int64_t windows : {1, 2, 5, 64, 1000}) {
      const std::vector<int64_t> tokens(static_cast<size_t>(files), windows * 8 + 1);
      const TokenSampler sampler =
          Sampler(tokens, {.sequence_length = 8, .global_batch = 3, .seed = 9});
      ASSERT_EQ(sampler.windows(), files * windows);
      std::vector<std::vector<std::pair<int, int64_t>>> epochs(3);
      for (int64_t n = 0; n < 3 * sampler.windows(); ++n) {
        const SampleLocation at = sampler.At(n / 3, n % 3);
        ASSERT_EQ(at.epoch, n / sampler.windows());
        ASSERT_EQ(at.offset % 8, 0);
        ASSERT_LE(at.offset + 9, tokens[static_cast<size_t>(at.file)]);
        epochs[static_cast<size_t>(at.epoch)].emplace_back(at.file, at.offset);
      }
      for (const auto& epoch : epochs) {
        const std::set<std::pair<int, int64_t>> distinct(epoch.begin(), epoch.end());
        ASSERT_EQ(static_cast<int64_t>(distinct.size()), sampler.windows());
      }
      if (sampler.windows() > 10) {
        EXPECT_NE(epochs[0], epochs[1]);
        EXPECT_NE(epochs[1], epochs[2]);
      }
    }
  }
}

TEST(TokenSamplerTest, SeedChangesTheOrder) {
  const SamplerOptions options{.sequence_length = 8, .global_batch = 4, .seed = 1};
  SamplerOptions other = options;
  other.seed = 2;
  const TokenSampler a = Sampler({8001}, options);
  const TokenSampler b = Sampler({8001}, other);
  int equal = 0;
  for (int64_t n = 0; n < 1000; ++n) {
    equal += a.At(n / 4, n % 4) == b.At(n / 4, n % 4) ? 1 : 0;
  }
  EXPECT_LT(equal, 20);  // One in a thousand is expected.
}

TEST(TokenSamplerTest, EverySplitReadsTheSameSamplesInTheSameStep) {
  const TokenSampler sampler =
      Sampler({4001, 977, 3000}, {.sequence_length = 16, .global_batch = 24, .seed = 5});
  const auto key = [](const SampleLocation& at) {
    return std::tuple(at.file, at.offset, at.epoch);
  };
  int splits = 0;
  for (int64_t step : {0, 1, 7, 40}) {
    std::vector<std::tuple<int, int64_t, int64_t>> want;
    for (int64_t i = 0; i < 24; ++i) {
      want.push_back(key(sampler.At(step, i)));
    }
    for (int64_t world = 1; world <= 24; ++world) {
      for (int64_t micro = 1; micro * world <= 24; ++micro) {
        if (24 % (world * micro) != 0) {
          continue;
        }
        // In the order micro-step, rank, position, every split gives the very same row.
        std::vector<std::tuple<int, int64_t, int64_t>> got;
        for (int64_t g = 0; g < 24 / (world * micro); ++g) {
          for (int64_t rank = 0; rank < world; ++rank) {
            for (const SampleLocation& at : sampler.MicroBatch(step, g, {rank, world, micro})) {
              got.push_back(key(at));
            }
          }
        }
        ASSERT_EQ(got, want) << "world " << world << " micro " << micro;
        ++splits;
      }
    }
  }
  EXPECT_EQ(splits, 4 * 30);  // Ordered factorisations of 24 into three.
}

TEST(TokenSamplerTest, FixedExample) {
  // Checkpoints continue runs of older builds: the order may never change.
  const TokenSampler sampler =
      Sampler({129}, {.sequence_length = 8, .global_batch = 8, .seed = 1234});
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i < 8; ++i) {
    offsets.push_back(sampler.At(0, i).offset);
  }
  EXPECT_THAT(offsets, ::testing::ElementsAre(16, 40, 24, 8, 32, 48, 0, 72));
}

TEST(TokenSamplerTest, SkipRangesAreJumpedOver) {
  const SamplerOptions options{.sequence_length = 8, .global_batch = 4, .seed = 3};
  const TokenSampler plain = Sampler({8001}, options);
  // Overlapping, touching, empty and unsorted ranges become [4, 12) and [20, 22).
  const TokenSampler skipping = Sampler({8001}, options, {{20, 22}, {8, 12}, {4, 9}, {15, 15}});
  EXPECT_EQ(skipping.CursorAt(0).skip, (std::vector<SkipRange>{{4, 12}, {20, 22}}));
  std::vector<int64_t> kept;
  for (int64_t n = 0; n < 60; ++n) {
    if ((n < 4 || n >= 12) && (n < 20 || n >= 22)) {
      kept.push_back(n);
    }
  }
  for (size_t i = 0; i < 40; ++i) {
    const auto n = static_cast<int64_t>(i);
    EXPECT_EQ(skipping.At(n / 4, n % 4), plain.At(kept[i] / 4, kept[i] % 4)) << i;
  }
}

TEST(TokenSamplerTest, CursorResumesExactly) {
  const std::vector<int64_t> tokens{8001, 900};
  const SamplerOptions options{.sequence_length = 8, .global_batch = 6, .seed = ~0ULL};
  const TokenSampler first = Sampler(tokens, options, {{30, 40}});
  const Json saved = first.CursorAt(250).ToJson();
  const absl::StatusOr<DataCursor> cursor = DataCursor::FromJson(*ParseJson(DumpJson(saved), "c"));
  ASSERT_TRUE(cursor.ok()) << cursor.status();
  EXPECT_EQ(*cursor, first.CursorAt(250));
  EXPECT_EQ(cursor->epoch, 1);
  SamplerOptions again = options;
  again.seed = cursor->seed;
  const TokenSampler second = Sampler(tokens, again, cursor->skip);
  EXPECT_TRUE(second.CheckCursor(*cursor).ok());
  for (int64_t step = cursor->step; step < cursor->step + 50; ++step) {
    for (int64_t i = 0; i < 6; ++i) {
      ASSERT_EQ(first.At(step, i), second.At(step, i));
    }
  }
}

TEST(TokenSamplerTest, AnotherBatchGoesOnBehindTheSamplesThatTheRunHasSeen) {
  const std::vector<int64_t> tokens{8001};
  const TokenSampler old = Sampler(tokens, {.sequence_length = 8, .global_batch = 4, .seed = 3});
  const DataCursor cursor = old.CursorAt(5);  // 20 samples.
  for (const auto& [batch, step] : {std::pair<int64_t, int64_t>(4, 5), {2, 10}, {10, 2}, {6, 4}}) {
    const TokenSampler next =
        Sampler(tokens, {.sequence_length = 8, .global_batch = batch, .seed = 3});
    EXPECT_EQ(next.CheckCursor(cursor).ok(), batch == 4);
    EXPECT_TRUE(next.CheckCursor(cursor, /*other_batch=*/true).ok());
    EXPECT_EQ(next.StepAfter(cursor), step) << batch;
  }
  // If one batch size divides the other, the next sample is the same.
  const TokenSampler twice = Sampler(tokens, {.sequence_length = 8, .global_batch = 10, .seed = 3});
  EXPECT_EQ(twice.At(twice.StepAfter(cursor), 0), old.At(5, 0));
}

TEST(TokenSamplerTest, CursorOfAnotherRunIsRefusedByName) {
  const TokenSampler sampler =
      Sampler({8001}, {.sequence_length = 8, .global_batch = 4, .seed = 3});
  const auto message = [&](auto change) {
    DataCursor cursor = sampler.CursorAt(5);
    change(cursor);
    const absl::Status status = sampler.CheckCursor(cursor);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  EXPECT_THAT(message([](DataCursor& c) { c.seed = 4; }), HasSubstr("seed 4, this run has 3"));
  EXPECT_THAT(message([](DataCursor& c) { c.windows = 9; }), HasSubstr("corpus windows 9"));
  EXPECT_THAT(message([](DataCursor& c) { c.global_batch = 9; }), HasSubstr("train_batch_size 9"));
  EXPECT_THAT(message([](DataCursor& c) { c.sequence_length = 9; }),
              HasSubstr("data.sequence_length 9"));
  EXPECT_THAT(message([](DataCursor& c) { c.step = 1LL << 47; }), HasSubstr("beyond any run"));
}

TEST(TokenSamplerTest, DamagedCursorIsRefusedByField) {
  const Json good = Sampler({8001}, {.sequence_length = 8, .global_batch = 4, .seed = 3}, {{1, 2}})
                        .CursorAt(5)
                        .ToJson();
  for (const auto& [name, unused] : good.items()) {
    Json bad = good;
    bad.erase(name);
    EXPECT_THAT(std::string(DataCursor::FromJson(bad).status().message()), HasSubstr(name));
    bad[name] = "x";
    EXPECT_THAT(std::string(DataCursor::FromJson(bad).status().message()), HasSubstr(name));
    bad[name] = -1;
    EXPECT_FALSE(DataCursor::FromJson(bad).ok()) << name;
  }
  Json bad = good;
  bad["skip"] = Json::parse("[[5, 4]]");
  EXPECT_THAT(std::string(DataCursor::FromJson(bad).status().message()), HasSubstr("[5, 4)"));
  bad["skip"] = Json::parse("[[5]]");
  EXPECT_FALSE(DataCursor::FromJson(bad).ok());
  bad["skip"] = Json::parse("[[0, 9223372036854775807]]");
  EXPECT_FALSE(DataCursor::FromJson(bad).ok());
  EXPECT_FALSE(DataCursor::FromJson(Json(5)).ok());
}

TEST(TokenSamplerTest, ACursorIsTakenUpToItsBounds) {
  constexpr int64_t kMost = int64_t{1} << 48;
  const TokenSampler sampler =
      Sampler({8001}, {.sequence_length = 8, .global_batch = 4, .seed = 3}, {{0, kMost}});
  EXPECT_EQ(sampler.CursorAt(0).skip, (std::vector<SkipRange>{{0, kMost}}));
  EXPECT_FALSE(
      TokenSampler::Create({8001}, {.sequence_length = 8, .global_batch = 4}, {{0, kMost + 1}})
          .ok());
  EXPECT_FALSE(
      TokenSampler::Create({8001}, {.sequence_length = 8, .global_batch = 4}, {{-1, 4}}).ok());
  Json json = sampler.CursorAt(5).ToJson();
  for (const char* const field : {"step", "epoch", "windows", "global_batch", "sequence_length"}) {
    const Json before = json[field];
    json[field] = kMost;
    EXPECT_TRUE(DataCursor::FromJson(json).ok()) << field;
    json[field] = kMost + 1;
    EXPECT_FALSE(DataCursor::FromJson(json).ok()) << field;
    json[field] = before;
  }
  DataCursor cursor = sampler.CursorAt(5);
  cursor.step = kMost / 4;
  EXPECT_TRUE(sampler.CheckCursor(cursor).ok());
  cursor.step = kMost / 4 + 1;
  EXPECT_FALSE(sampler.CheckCursor(cursor).ok());
}

// A call that would read another rank's samples, or another step's, is a bug of the caller.
TEST(TokenSamplerTest, AMicroBatchOutsideTheStepEndsTheProcess) {
  const TokenSampler sampler =
      Sampler({4001}, {.sequence_length = 16, .global_batch = 24, .seed = 5});
  const auto exits = ::testing::ExitedWithCode(kExitBug);
  EXPECT_EQ(sampler.MicroBatch(0, 3, {1, 2, 3}).size(), 3U);
  EXPECT_EXIT(sampler.MicroBatch(0, 4, {1, 2, 3}), exits, "micro-step 4");
  EXPECT_EXIT(sampler.MicroBatch(0, 0, {2, 2, 3}), exits, "rank 2 of 2");
  EXPECT_EXIT(sampler.MicroBatch(0, 0, {0, 2, 5}), exits, "micro-batch 5");
  EXPECT_EXIT(sampler.At(-1, 0), exits, "step -1");
  EXPECT_EXIT(sampler.At(0, -1), exits, "position -1");
  EXPECT_EXIT(sampler.At(0, 24), exits, "position 24");
}

TEST(TokenSamplerTest, TooShortACorpusSaysWhatIsNeeded) {
  const absl::Status status =
      TokenSampler::Create({8, 8}, {.sequence_length = 8, .global_batch = 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      std::string(status.message()),
      "16 tokens in 2 files hold no sample: data.sequence_length 8 needs 9 tokens in one file");
  EXPECT_FALSE(TokenSampler::Create({9}, {.sequence_length = 0, .global_batch = 1}).ok());
  EXPECT_FALSE(TokenSampler::Create({9}, {.sequence_length = 8, .global_batch = 0}).ok());
}

}  // namespace
}  // namespace dtrain::plan::token_sampler_test
