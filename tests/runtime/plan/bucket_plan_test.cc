#include "runtime/plan/layout/bucket_plan.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/numeric/prng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/plan/layout_of.h"

namespace dtrain::plan::bucket_plan_test {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> BucketSizes(const BucketPlan& plan) {
  std::vector<int64_t> sizes;
  for (const Bucket& bucket : plan.buckets()) {
    sizes.push_back(bucket.elements());
  }
  return sizes;
}

// Everything that must hold for any input.
void ExpectSound(const ParamLayout& layout, const BucketPlan& plan, const BucketOptions& options) {
  const std::vector<LayoutEntry>& entries = layout.entries();
  int64_t covered = 0;
  int next_entry = 0;
  for (size_t b = 0; b < plan.buckets().size(); ++b) {
    const Bucket& bucket = plan.buckets()[b];
    ASSERT_EQ(bucket.begin, covered);
    ASSERT_EQ(bucket.first_entry, next_entry);
    ASSERT_LT(bucket.first_entry, bucket.last_entry);
    ASSERT_GE(bucket.end, bucket.begin);
    ASSERT_EQ(bucket.begin % ParamLayout::kAlignElements, 0);
    if (bucket.last_entry - bucket.first_entry > 1) {
      ASSERT_LE(bucket.elements(), options.bucket_elements);
    }
    for (int e = bucket.first_entry; e < bucket.last_entry; ++e) {
      const LayoutEntry& entry = entries[static_cast<size_t>(e)];
      ASSERT_GE(entry.offset, bucket.begin);
      ASSERT_LE(entry.offset + entry.elements, bucket.end);
    }
    covered = bucket.end;
    next_entry = bucket.last_entry;
  }
  ASSERT_EQ(covered, layout.total_elements());
  ASSERT_EQ(next_entry, static_cast<int>(entries.size()));
  std::vector<int> order = plan.launch_order();
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size(); ++i) {
    ASSERT_EQ(order[i], static_cast<int>(i));
  }
  ASSERT_EQ(order.size(), plan.buckets().size());
}

TEST(BucketElementsTest, ASmallModelIsCutIntoSix) {
  const auto config = [](const std::string& zero) {
    return *Config::Parse(
        absl::StrCat(R"({"train_batch_size": 8, "zero_optimization": )", zero, "}"), "x.json", {},
        1);
  };
  const Config overlapped = config(R"({"reduce_bucket_size": 6553600})");
  EXPECT_EQ(BucketElements(overlapped, 12'000'000), 2'000'000);
  EXPECT_EQ(BucketElements(overlapped, 60'000'000), 6'553'600) << "the key's";
  EXPECT_EQ(BucketElements(overlapped, 600'000), 262'144) << "a call costs more than it hides";
  EXPECT_EQ(BucketElements(config(R"({"overlap_comm": false, "reduce_bucket_size": 9000000})"),
                           12'000'000),
            9'000'000);
  EXPECT_EQ(BucketElements(config(R"({"reduce_bucket_size": 1000})"), 12'000'000), 1000);
}

TEST(BucketPlanTest, FirstBucketIsSmallAndLargeTensorsStandAlone) {
  const ParamLayout layout = LayoutOf({32, 32, 64, 64, 640, 32, 96});
  const BucketOptions options{.bucket_elements = 128, .first_bucket_elements = 64};
  const BucketPlan plan = *BucketPlan::Create(layout, options);
  EXPECT_THAT(BucketSizes(plan), ElementsAre(64, 128, 640, 128));
  EXPECT_THAT(plan.launch_order(), ElementsAre(0, 1, 2, 3));
  ExpectSound(layout, plan, options);
}

TEST(BucketPlanTest, ReadinessMovesTheSmallBucketAndTheLaunchOrder) {
  const ParamLayout layout = LayoutOf({64, 64, 64, 64});
  const BucketOptions options{.bucket_elements = 128, .first_bucket_elements = 64};
  // The last two entries of the layout become ready first.
  const BucketPlan plan = *BucketPlan::Create(layout, options, {2, 3, 0, 1});
  EXPECT_THAT(BucketSizes(plan), ElementsAre(128, 64, 64));
  EXPECT_THAT(plan.launch_order(), ElementsAre(1, 2, 0));
}

TEST(BucketPlanTest, LateGradientIsCutOffFromEarlyOnes) {
  // Entry 1 is a shared weight: it is ready when everything else is.
  const ParamLayout layout = LayoutOf({64, 64, 64, 64});
  const BucketOptions options{.bucket_elements = 1024, .first_bucket_elements = 64};
  const BucketPlan plan = *BucketPlan::Create(layout, options, {0, 2, 3, 1});
  EXPECT_THAT(BucketSizes(plan), ElementsAre(64, 64, 128));
  EXPECT_THAT(plan.launch_order(), ElementsAre(0, 2, 1));
}

TEST(BucketPlanTest, AJumpCutsUnlessBothSidesAreSmall) {
  const BucketOptions options{.bucket_elements = 1024, .first_bucket_elements = 128};
  // Entry 2 is ready after entry 3: small ones stay together, a large one on either side is cut
  // off.
  const BucketPlan left =
      *BucketPlan::Create(LayoutOf({128, 64, 64, 192, 64}), options, {0, 1, 3, 2, 4});
  EXPECT_THAT(BucketSizes(left), ElementsAre(128, 128, 192, 64));
  EXPECT_THAT(left.launch_order(), ElementsAre(0, 2, 1, 3));
  const BucketPlan right = *BucketPlan::Create(LayoutOf({128, 64, 192, 64}), options, {0, 1, 3, 2});
  EXPECT_THAT(BucketSizes(right), ElementsAre(128, 64, 192, 64));
}

TEST(BucketPlanTest, UnusedParametersAreReadyLast) {
  const ParamLayout layout = LayoutOf({64, 64, 64});
  const BucketOptions options{.bucket_elements = 64, .first_bucket_elements = 64};
  const BucketPlan plan = *BucketPlan::Create(layout, options, {1, 2});
  EXPECT_THAT(plan.launch_order(), ElementsAre(1, 2, 0));
}

TEST(BucketPlanTest, EmptyLayoutHasNoBuckets) {
  const BucketPlan plan = *BucketPlan::Create(LayoutOf({}), {});
  EXPECT_TRUE(plan.buckets().empty());
  EXPECT_TRUE(plan.launch_order().empty());
}

TEST(BucketPlanTest, HashFollowsBoundariesAndLaunchOrder) {
  const ParamLayout layout = LayoutOf({64, 64, 64, 64});
  const BucketOptions options{.bucket_elements = 64, .first_bucket_elements = 64};
  const uint64_t base = BucketPlan::Create(layout, options)->hash();
  EXPECT_EQ(base, BucketPlan::Create(layout, options)->hash());
  EXPECT_NE(base, BucketPlan::Create(layout, options, {0, 2, 1, 3})->hash());
  EXPECT_NE(base, BucketPlan::Create(layout, {.bucket_elements = 128})->hash());
}

TEST(BucketPlanTest, RefusesBadOptionsAndOrders) {
  const ParamLayout layout = LayoutOf({64, 64});
  EXPECT_FALSE(BucketPlan::Create(layout, {.bucket_elements = 0}).ok());
  EXPECT_FALSE(BucketPlan::Create(layout, {.first_bucket_elements = 0}).ok());
  EXPECT_FALSE(BucketPlan::Create(layout, {.rest_parts = 0}).ok());
  EXPECT_FALSE(BucketPlan::Create(layout, {.last_bucket_elements = 0}).ok());
  EXPECT_TRUE(BucketPlan::Create(layout, {1, 1, 1, 1}).ok());
  EXPECT_FALSE(BucketPlan::Create(layout, {}, {2}).ok());
  EXPECT_FALSE(BucketPlan::Create(layout, {}, {-1}).ok());
  EXPECT_FALSE(BucketPlan::Create(layout, {}, {1, 1}).ok());
}

// All layouts of up to 5 tensors of 5 sizes, all bucket limits that differ in effect, all orders.
TEST(BucketPlanTest, CoversEverythingOnceForEverySmallCase) {
  const int64_t sizes[] = {0, 1, 32, 33, 200};
  int64_t cases = 0;
  for (size_t count = 0; count <= 5; ++count) {
    size_t combinations = 1;
    for (size_t i = 0; i < count; ++i) {
      combinations *= 5;
    }
    for (size_t code = 0; code < combinations; ++code) {
      std::vector<int64_t> chosen;
      for (size_t i = 0, rest = code; i < count; ++i, rest /= 5) {
        chosen.push_back(sizes[rest % 5]);
      }
      const ParamLayout layout = LayoutOf(chosen);
      std::vector<int> order(count);
      std::iota(order.begin(), order.end(), 0);
      const bool all_orders = count <= 4;
      do {
        for (const int64_t limit : {1, 64, 96, 1000}) {
          for (const int64_t first : {1, 64, 1000}) {
            const BucketOptions options{limit, first};
            const absl::StatusOr<BucketPlan> plan = BucketPlan::Create(layout, options, order);
            ASSERT_TRUE(plan.ok());
            ExpectSound(layout, *plan, options);
            ++cases;
          }
        }
      } while (all_orders && std::next_permutation(order.begin(), order.end()));
    }
  }
  EXPECT_GT(cases, 200000);
}

TEST(BucketPlanTest, BucketsShrinkWithWhatIsLeft) {
  const ParamLayout layout = LayoutOf(std::vector<int64_t>(16, 64));
  const BucketPlan halves = *BucketPlan::Create(layout, {.bucket_elements = 256,
                                                         .first_bucket_elements = 64,
                                                         .rest_parts = 2,
                                                         .last_bucket_elements = 64});
  // 960 are left after the first: 256 is less than half of them; then 704, 448, 192 and 64.
  EXPECT_EQ(BucketSizes(halves), (std::vector<int64_t>{64, 256, 256, 192, 128, 64, 64}));
  const BucketPlan floor = *BucketPlan::Create(layout, {.bucket_elements = 256,
                                                        .first_bucket_elements = 64,
                                                        .rest_parts = 16,
                                                        .last_bucket_elements = 192});
  EXPECT_EQ(BucketSizes(floor), (std::vector<int64_t>{64, 192, 192, 192, 192, 192}));
}

TEST(BucketPlanTest, CoversEverythingOnceForRandomModels) {
  const uint64_t seed = 20261121;
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  SplitMix64 random(seed);
  for (int round = 0; round < 500; ++round) {
    std::vector<int64_t> sizes(random.Below(200));
    for (int64_t& size : sizes) {
      size = static_cast<int64_t>(random.Below(random.Below(2) == 0 ? 100 : 100000));
    }
    std::vector<int> order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[random.Below(i)]);
    }
    order.resize(random.Below(order.size() + 1));
    const BucketOptions options{1 + static_cast<int64_t>(random.Below(200000)),
                                1 + static_cast<int64_t>(random.Below(200000)),
                                1 + static_cast<int64_t>(random.Below(8)),
                                1 + static_cast<int64_t>(random.Below(50000))};
    const ParamLayout layout = LayoutOf(sizes);
    const absl::StatusOr<BucketPlan> plan = BucketPlan::Create(layout, options, order);
    ASSERT_TRUE(plan.ok());
    ExpectSound(layout, *plan, options);
  }
}

}  // namespace
}  // namespace dtrain::plan::bucket_plan_test
