#include "runtime/plan/layout/bucket_tuning.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/numeric/prng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/plan/layout_of.h"

namespace dtrain::plan::bucket_tuning_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kKi = 1024;

// `layers` tensors of 64 Ki elements that become ready evenly over a backward of one second.
struct Steady {
  explicit Steady(int layers)
      : layout(LayoutOf(std::vector<int64_t>(static_cast<size_t>(layers), 64 * kKi))) {
    order.resize(static_cast<size_t>(layers));
    std::iota(order.begin(), order.end(), 0);
    times.end_s = 1;
    for (int i = 0; i < layers; ++i) {
      times.ready_s.push_back((i + 1.0) / layers);
    }
  }
  ParamLayout layout;
  std::vector<int> order;
  BackwardTimes times;
};

TEST(FitReductionCostTest, FindsWhatCallsAndElementsCost) {
  const ReductionCost cost = FitReductionCost({{1000, 0.003}, {2000, 0.005}, {5000, 0.011}});
  EXPECT_NEAR(cost.call_s, 0.001, 1e-9);
  EXPECT_NEAR(cost.element_s, 2e-6, 1e-12);
}

TEST(FitReductionCostTest, NeitherPartIsBelowZeroAndOneSizeCostsItsElements) {
  for (const auto& reductions :
       std::vector<std::vector<std::pair<int64_t, double>>>{{{1000, 0.002}, {1000, 0.004}},
                                                            {{1000, 0.001}, {2000, 0.004}},
                                                            {{1000, 4}, {2000, 1}}}) {
    const ReductionCost cost = FitReductionCost(reductions);
    EXPECT_EQ(cost.call_s, 0);
    EXPECT_GT(cost.element_s, 0);
  }
  EXPECT_EQ(FitReductionCost({}).call_s, 0);
  EXPECT_EQ(FitReductionCost({{0, 0.5}}).call_s, 0.5);
}

TEST(EstimateReducedTest, ReductionsFollowEachOtherOnceTheirBucketsAreFull) {
  Steady steady(4);
  steady.times.cost = {.call_s = 0.01, .element_s = 0.4 / (64 * kKi)};
  const BucketPlan apart = *BucketPlan::Create(
      steady.layout, {.bucket_elements = 64 * kKi, .first_bucket_elements = 64 * kKi});
  // The first begins at 0.25 s; four of 0.41 s follow without a gap.
  EXPECT_NEAR(EstimateReduced(apart, steady.times), 0.25 + 4 * 0.41, 1e-9);
  const BucketPlan whole = *BucketPlan::Create(
      steady.layout, {.bucket_elements = 256 * kKi, .first_bucket_elements = 256 * kKi});
  EXPECT_NEAR(EstimateReduced(whole, steady.times), 1 + 0.01 + 4 * 0.4, 1e-9);
  // On a fast link what is left is backward itself, and the calls that took its core.
  steady.times.cost = {.call_s = 0.001};
  EXPECT_NEAR(EstimateReduced(apart, steady.times), 1 + 4 * 0.001, 1e-9);
}

TEST(TuneBucketsTest, ASlowLinkWantsSmallBucketsAndDearCallsLargeOnes) {
  Steady steady(64);
  const TuningBounds bounds = BoundsOfTuning(4096 * kKi, 1024 * kKi);
  EXPECT_EQ(bounds.least, 64 * kKi);
  steady.times.cost = {.call_s = 1e-5, .element_s = 0.8 / (64 * 64 * kKi)};
  const TunedBuckets slow = *TuneBuckets(steady.layout, steady.order, steady.times, bounds);
  const BucketPlan cut = *BucketPlan::Create(steady.layout, slow.options, steady.order);
  EXPECT_EQ(cut.buckets().back().elements(), 64 * kKi);
  EXPECT_LT(slow.reduced_s, 1.02);
  EXPECT_GT(slow.present_reduced_s, 1.1);
  steady.times.cost = {.call_s = 0.05, .element_s = 1e-12};
  const TunedBuckets dear = *TuneBuckets(steady.layout, steady.order, steady.times, bounds);
  EXPECT_EQ(dear.options.bucket_elements, 4096 * kKi);
  EXPECT_EQ(dear.options.rest_parts, 1);
  // If nothing costs anything, all sizes are equally fast, and the fewest calls win.
  steady.times.cost = {};
  EXPECT_EQ(TuneBuckets(steady.layout, steady.order, steady.times, bounds)->options.bucket_elements,
            4096 * kKi);
}

// Calls that cost something and a link that is idle half of the time: only the end is cut small.
TEST(TuneBucketsTest, AFastLinkWithDearCallsWantsASmallEnd) {
  Steady steady(64);
  const TuningBounds bounds = BoundsOfTuning(4096 * kKi, 1024 * kKi);
  steady.times.cost = {.call_s = 2e-3, .element_s = 0.4 / (64 * 64 * kKi)};
  const TunedBuckets tuned = *TuneBuckets(steady.layout, steady.order, steady.times, bounds);
  EXPECT_GT(tuned.options.rest_parts, 1);
  const BucketPlan cut = *BucketPlan::Create(steady.layout, tuned.options, steady.order);
  EXPECT_LT(cut.buckets().size(), 16U);
  EXPECT_EQ(cut.buckets().back().elements(), 64 * kKi);
  EXPECT_LT(tuned.reduced_s, 1.04);
}

TEST(TuneBucketsTest, RefusesBoundsThatAreNoneAndTimesOfAnotherLayout) {
  const Steady steady(4);
  for (const TuningBounds& bounds :
       {TuningBounds{0, 10, 5}, TuningBounds{10, 5, 7}, TuningBounds{1, 10, 0}}) {
    EXPECT_EQ(TuneBuckets(steady.layout, steady.order, steady.times, bounds).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  BackwardTimes short_times = steady.times;
  short_times.ready_s.pop_back();
  EXPECT_THAT(std::string(TuneBuckets(steady.layout, steady.order, short_times,
                                      BoundsOfTuning(4096 * kKi, 64 * kKi))
                              .status()
                              .message()),
              HasSubstr("3 times of readiness for a layout of 4 entries"));
}

// For any times the size is within the bounds, the same for the same input, and by the estimate no
// worse than the present one, but for the half percent that a larger size may cost.
TEST(TuneBucketsTest, RandomTimesGiveASizeWithinTheBoundsThatIsNoWorse) {
  const uint64_t seed = 20261122;
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  SplitMix64 random(seed);
  const auto uniform = [&random] { return static_cast<double>(random.Below(1 << 20)) / (1 << 20); };
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> sizes(1 + random.Below(40));
    for (int64_t& size : sizes) {
      size = 1 + static_cast<int64_t>(random.Below(200000));
    }
    const ParamLayout layout = LayoutOf(sizes);
    std::vector<int> order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[random.Below(i)]);
    }
    BackwardTimes times{.end_s = uniform(),
                        .cost = {.call_s = uniform() * 1e-2, .element_s = uniform() * 1e-6}};
    for (size_t i = 0; i < sizes.size(); ++i) {
      times.ready_s.push_back(times.end_s * uniform());
    }
    const auto most = static_cast<int64_t>(1 + random.Below(1 << 22));
    const TuningBounds bounds =
        BoundsOfTuning(most, 1 + static_cast<int64_t>(random.Below(static_cast<uint64_t>(most))));
    const auto tuned = TuneBuckets(layout, order, times, bounds);
    ASSERT_TRUE(tuned.ok()) << tuned.status();
    EXPECT_GE(tuned->options.bucket_elements, std::min(bounds.least, bounds.present));
    EXPECT_LE(tuned->options.bucket_elements, bounds.most);
    const BucketPlan plan = *BucketPlan::Create(layout, tuned->options, order);
    EXPECT_EQ(EstimateReduced(plan, times), tuned->reduced_s);
    EXPECT_LE(tuned->reduced_s, tuned->present_reduced_s * 1.0051);
    EXPECT_EQ(tuned->options, TuneBuckets(layout, order, times, bounds)->options);
  }
}

}  // namespace
}  // namespace dtrain::plan::bucket_tuning_test
