#include "runtime/plan/layout/shard_plan.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/numeric/prng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/plan/layout_of.h"

namespace dtrain::plan::shard_plan_test {
namespace {

using ::testing::ElementsAre;

// Everything that must hold for any input.
void ExpectSound(const ParamLayout& layout, const ShardPlan& plan, const ShardOptions& shards) {
  const BucketOptions& options = shards.buckets;
  const int world_size = shards.world_size;
  const int64_t grain = shards.grain();
  const int64_t step = std::lcm(grain, shards.bucket_multiple);
  int64_t covered = 0;
  for (size_t b = 0; b < plan.buckets().size(); ++b) {
    const FlatRange bucket = plan.buckets()[b];
    ASSERT_EQ(bucket.begin, covered);
    ASSERT_EQ(bucket.begin % step, 0);
    ASSERT_EQ(bucket.end % grain, 0);
    ASSERT_GT(bucket.elements(), 0);
    if (shards.units.empty()) {
      const int64_t limit = b == 0
                                ? std::min(options.first_bucket_elements, options.bucket_elements)
                                : options.bucket_elements;
      ASSERT_LE(bucket.elements(), std::max(step, limit));
    }
    covered = bucket.end;
  }
  ASSERT_EQ(covered, plan.padded_elements());
  ASSERT_EQ(covered, shards.padded(layout.total_elements()));
  ASSERT_GE(covered, layout.total_elements());
  ASSERT_LT(covered - layout.total_elements(), grain + (layout.total_elements() == 0));
  // Every element of the layout has one owner, at one place of its shard.
  std::vector<int> owners(static_cast<size_t>(layout.total_elements()), 0);
  for (int rank = 0; rank < world_size; ++rank) {
    int64_t local = 0;
    for (const OwnedRange& owned : plan.owned(rank)) {
      ASSERT_EQ(owned.local, local) << "a shard has no holes before its padding";
      local += owned.flat.elements();
      for (int64_t i = owned.flat.begin; i < owned.flat.end; ++i) {
        ++owners[static_cast<size_t>(i)];
      }
    }
    ASSERT_LE(local, plan.shard_elements());
  }
  ASSERT_EQ(std::count(owners.begin(), owners.end(), 1), layout.total_elements());
  // Entries and gaps fill the buckets, once.
  std::vector<int> filled(static_cast<size_t>(plan.padded_elements()), 0);
  for (size_t entry = 0; entry < layout.entries().size(); ++entry) {
    const LayoutEntry& e = layout.entries()[entry];
    const BucketSpan span = plan.spans()[entry];
    for (int bucket = span.first; bucket < span.last; ++bucket) {
      const FlatRange piece =
          Intersect({e.offset, e.offset + e.elements}, plan.buckets()[static_cast<size_t>(bucket)]);
      ASSERT_GT(piece.elements(), 0);
      std::for_each(filled.begin() + piece.begin, filled.begin() + piece.end, [](int& n) { ++n; });
    }
  }
  for (const auto& gaps : plan.gaps()) {
    for (const FlatRange& gap : gaps) {
      std::for_each(filled.begin() + gap.begin, filled.begin() + gap.end, [](int& n) { ++n; });
    }
  }
  ASSERT_EQ(std::count(filled.begin(), filled.end(), 1), plan.padded_elements());
}

TEST(ShardPlan, IsSoundForAnyLayoutSizeAndWorld) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SplitMix64 random(seed);
    std::vector<int64_t> sizes(1 + random.Below(12));
    for (int64_t& size : sizes) {
      size = static_cast<int64_t>(random.Below(random.Below(4) == 0 ? 900 : 60));
    }
    const ParamLayout layout = LayoutOf(sizes);
    const ShardOptions options{
        .buckets = {.bucket_elements = 1 + static_cast<int64_t>(random.Below(700)),
                    .first_bucket_elements = 1 + static_cast<int64_t>(random.Below(200))},
        .world_size = 1 + static_cast<int>(random.Below(9)),
        .align_elements = random.Below(3) == 0 ? 256 : 32,
        .bucket_multiple = random.Below(3) == 0 ? 4096 : 1};
    const auto plan = ShardPlan::Create(layout, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ExpectSound(layout, *plan, options);
    if (::testing::Test::HasFatalFailure()) {
      return;
    }
  }
}

// Random units of neighbouring entries, with gaps between some of the units.
std::vector<FlatRange> SomeUnits(const ParamLayout& layout, SplitMix64& random) {
  std::vector<FlatRange> units;
  const std::vector<LayoutEntry>& entries = layout.entries();
  for (size_t first = 0; first < entries.size();) {
    const size_t end = std::min(entries.size(), first + 1 + random.Below(4));
    const int64_t to = end < entries.size() ? entries[end].offset : layout.total_elements();
    if (random.Below(4) != 0 && to > entries[first].offset) {
      units.push_back({entries[first].offset, to});
    }
    first = end;
  }
  return units;
}

TEST(ShardPlan, IsSoundForAnyUnitsAndHasNoBucketAcrossTheirBorders) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SplitMix64 random(seed);
    std::vector<int64_t> sizes(1 + random.Below(12));
    for (int64_t& size : sizes) {
      size = static_cast<int64_t>(random.Below(random.Below(4) == 0 ? 3000 : 300));
    }
    const ParamLayout layout = LayoutOf(sizes);
    ShardOptions options{.buckets = {.bucket_elements = 1 + static_cast<int64_t>(random.Below(700)),
                                     .first_bucket_elements = 100},
                         .world_size = 1 + static_cast<int>(random.Below(4)),
                         .bucket_multiple = random.Below(3) == 0 ? 256 : 1};
    options.units = SomeUnits(layout, random);
    options.unit_elements_max = random.Below(2) == 0 ? 500 : 1 << 20;
    const auto plan = ShardPlan::Create(layout, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ExpectSound(layout, *plan, options);
    if (::testing::Test::HasFatalFailure()) {
      return;
    }
    const int64_t step = std::lcm(options.grain(), options.bucket_multiple);
    const auto begins_at = [&](int64_t element) {
      return std::any_of(plan->buckets().begin(), plan->buckets().end(),
                         [&](const FlatRange& bucket) { return bucket.begin == element; });
    };
    for (const FlatRange& unit : options.units) {
      const int64_t begin = unit.begin / step * step;
      const int64_t end =
          unit.end == layout.total_elements() ? plan->padded_elements() : unit.end / step * step;
      ASSERT_TRUE(begins_at(begin)) << unit.begin;
      ASSERT_TRUE(end == plan->padded_elements() || begins_at(end)) << unit.end;
      const auto buckets = std::count_if(
          plan->buckets().begin(), plan->buckets().end(),
          [&](const FlatRange& bucket) { return bucket.begin >= begin && bucket.end <= end; });
      const int64_t limit = std::max(step, options.unit_elements_max / step * step);
      ASSERT_LE(buckets, (end - begin + limit - 1) / limit) << "no more than the limit asks for";
    }
  }
}

TEST(ShardPlan, AUnitIsOneBucketOrEqualOnesAndTheRestIsCutAsEver) {
  const ParamLayout layout = LayoutOf({128, 512, 128, 128});
  ShardOptions options{.buckets = {.bucket_elements = 64, .first_bucket_elements = 32},
                       .world_size = 1,
                       .units = {{128, 768}}};
  EXPECT_THAT(ShardPlan::Create(layout, options)->buckets(),
              ElementsAre(FlatRange{0, 32}, FlatRange{32, 96}, FlatRange{96, 128},
                          FlatRange{128, 768}, FlatRange{768, 832}, FlatRange{832, 896}));
  options.unit_elements_max = 256;
  EXPECT_THAT(ShardPlan::Create(layout, options)->buckets(),
              ElementsAre(FlatRange{0, 32}, FlatRange{32, 96}, FlatRange{96, 128},
                          FlatRange{128, 352}, FlatRange{352, 576}, FlatRange{576, 768},
                          FlatRange{768, 832}, FlatRange{832, 896}));
}

TEST(ShardPlan, BordersOfUnitsAreKeptToWhereBucketsMayBegin) {
  const ShardOptions options{.world_size = 2, .units = {{0, 160}, {160, 192}, {192, 320}}};
  EXPECT_THAT(ShardPlan::Create(LayoutOf({160, 32, 128}), options)->buckets(),
              ElementsAre(FlatRange{0, 128}, FlatRange{128, 192}, FlatRange{192, 320}));
  EXPECT_THAT(ShardPlan::Create(LayoutOf({160, 32, 128}),
                                {.world_size = 4, .units = {{0, 160}, {160, 192}, {192, 320}}})
                  ->buckets(),
              ElementsAre(FlatRange{0, 128}, FlatRange{128, 384}))
      << "the second has no place for a bucket";
}

TEST(ShardPlan, EachRankOwnsAnEqualPartOfEveryBucket) {
  const auto plan = ShardPlan::Create(
      LayoutOf({100, 64}),
      {.buckets = {.bucket_elements = 128, .first_bucket_elements = 64}, .world_size = 2});
  EXPECT_THAT(plan->buckets(), ElementsAre(FlatRange{0, 64}, FlatRange{64, 192}));
  EXPECT_EQ(plan->part(1, 1), (OwnedRange{{128, 192}, 32}));
  EXPECT_THAT(plan->owned(0), ElementsAre(OwnedRange{{0, 32}, 0}, OwnedRange{{64, 128}, 32}));
  EXPECT_THAT(plan->spans(), ElementsAre(BucketSpan{0, 2}, BucketSpan{1, 2}));
}

TEST(ShardPlan, LaunchesInTheOrderOfReadiness) {
  const auto plan = ShardPlan::Create(
      LayoutOf({64, 64, 64}),
      {.buckets = {.bucket_elements = 64, .first_bucket_elements = 64}, .world_size = 2});
  EXPECT_THAT(*plan->LaunchOrder({}), ElementsAre(0, 1, 2));
  EXPECT_THAT(*plan->LaunchOrder({2, 0, 1}), ElementsAre(2, 0, 1));
  EXPECT_THAT(*plan->LaunchOrder({1}), ElementsAre(1, 0, 2)) << "what was left out is ready last";
  EXPECT_EQ(plan->LaunchOrder({3}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ShardPlan, FindsTheBucketsOfARange) {
  const auto plan = ShardPlan::Create(
      LayoutOf({64, 192}),
      {.buckets = {.bucket_elements = 64, .first_bucket_elements = 64}, .world_size = 2});
  EXPECT_EQ(plan->BucketsOf({0, 1}), (BucketSpan{0, 1}));
  EXPECT_EQ(plan->BucketsOf({63, 65}), (BucketSpan{0, 2}));
  EXPECT_EQ(plan->BucketsOf({64, 128}), (BucketSpan{1, 2}));
  EXPECT_EQ(plan->BucketsOf({10, 256}), (BucketSpan{0, 4}));
}

TEST(ShardPlan, AnEmptyTensorAtTheEndIsInNoBucket) {
  const auto plan = ShardPlan::Create(LayoutOf({64, 0}), {.world_size = 2});
  EXPECT_EQ(plan->padded_elements(), 64);
  EXPECT_THAT(plan->spans(), ElementsAre(BucketSpan{0, 1}, BucketSpan{0, 0}));
}

TEST(ShardPlan, RefusesSizesBelowOneAndOtherAlignments) {
  const ParamLayout layout = LayoutOf({8});
  EXPECT_FALSE(ShardPlan::Create(layout, {.buckets = {.bucket_elements = 0}}).ok());
  EXPECT_FALSE(ShardPlan::Create(layout, {.world_size = 0}).ok());
  EXPECT_FALSE(ShardPlan::Create(layout, {.align_elements = 33}).ok());
  EXPECT_FALSE(ShardPlan::Create(layout, {.bucket_multiple = 0}).ok());
}

}  // namespace
}  // namespace dtrain::plan::shard_plan_test
