#include "runtime/plan/layout/block_sizes.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/numeric/prng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::block_sizes_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(BlockSizes, EqualBucketsHaveAsManyBlocksAsMayBeLiveAndOne) {
  EXPECT_THAT(BlockSizes({8, 8, 8, 8}, 16), ElementsAre(8, 8, 8));
  EXPECT_THAT(BlockSizes({8, 8, 8, 8}, 1), ElementsAre(8)) << "what one operation needs";
  EXPECT_THAT(BlockSizes({8, 8}, 1000), ElementsAre(8, 8)) << "no more than there are buckets";
  EXPECT_THAT(BlockSizes({}, 10), IsEmpty());
}

TEST(BlockSizes, ManySmallBucketsHaveNoLargeBlocks) {
  // An embedding, layers, norms.
  EXPECT_THAT(BlockSizes({50, 20, 20, 20, 1, 1}, 60), ElementsAre(50, 50, 20, 20, 1));
}

TEST(BlockSizes, OfAPlanAreItsBucketsInWholeMultiples) {
  const std::vector<ParamSpec> tensors = {{"last", {100}}, {"unit", {512}}, {"first", {64}}};
  const auto layout = ParamLayout::Create(tensors);
  ASSERT_TRUE(layout.ok()) << layout.status();
  ShardOptions options{.bucket_multiple = 96, .units = {{64, 576}}};
  options.buckets = {.bucket_elements = 64, .first_bucket_elements = 64};
  const auto shards = ShardPlan::Create(*layout, options);
  ASSERT_TRUE(shards.ok()) << shards.status();
  // Buckets of 576 elements, of 96, and of 32 at the end.
  ASSERT_EQ(shards->padded_elements(), 704);
  EXPECT_EQ(shards->largest_bucket(), 576);
  EXPECT_THAT(BlocksOf(*shards, 600), ElementsAre(576, 576, 96));
  EXPECT_THAT(BlocksOf(*shards, 1000), ElementsAre(576, 96, 96));
}

// By all sets of buckets.
TEST(BlockSizes, EverySetThatMayBeLiveHasABlockForEachBucketAndNoBlockIsLargerThanThatTakes) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SplitMix64 random(seed);
    std::vector<int64_t> buckets(random.Below(8));
    for (int64_t& bucket : buckets) {
      bucket = 1 + static_cast<int64_t>(random.Below(12));
    }
    const auto live_max = static_cast<int64_t>(random.Below(60));
    std::vector<int64_t> needed;
    for (uint64_t set = 1; set < (uint64_t{1} << buckets.size()); ++set) {
      std::vector<int64_t> live;
      int64_t total = 0;
      for (size_t i = 0; i < buckets.size(); ++i) {
        if ((set >> i & 1) != 0) {
          live.push_back(buckets[i]);
          total += buckets[i];
        }
      }
      if (total > live_max) {
        continue;
      }
      std::sort(live.begin(), live.end(), std::greater<>());
      needed.resize(std::max(needed.size(), live.size()), 0);
      for (size_t i = 0; i < live.size(); ++i) {
        needed[i] = std::max(needed[i], live[i]);
      }
    }
    if (needed.size() < buckets.size()) {
      needed.insert(needed.begin(), *std::max_element(buckets.begin(), buckets.end()));
    }
    ASSERT_EQ(BlockSizes(buckets, live_max), needed);
  }
}

}  // namespace
}  // namespace dtrain::plan::block_sizes_test
