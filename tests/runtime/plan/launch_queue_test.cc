#include "runtime/plan/layout/launch_queue.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::launch_queue_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LaunchQueueTest : public ::testing::Test {
 protected:
  std::vector<int> Ready(LaunchQueue& queue, size_t entry) {
    std::vector<int> launched;
    queue.Ready(entry, [&](int bucket) { launched.push_back(bucket); });
    return launched;
  }
  // Entry 1 lies in buckets 0 and 1; bucket 3 holds no entry.
  const std::vector<BucketSpan> spans_ = {{0, 1}, {0, 2}, {1, 2}, {2, 3}};
};

TEST_F(LaunchQueueTest, ABucketWaitsForAllItsEntriesAndForTheBucketsBeforeIt) {
  LaunchQueue queue(spans_, {0, 1, 2, 3});
  EXPECT_THAT(Ready(queue, 3), IsEmpty()) << "bucket 2 is full, but 0 and 1 are not";
  EXPECT_THAT(Ready(queue, 0), IsEmpty());
  EXPECT_THAT(Ready(queue, 1), ElementsAre(0));
  EXPECT_TRUE(queue.is_launched(1)) << "one of its two buckets";
  EXPECT_FALSE(queue.is_launched(2));
  EXPECT_THAT(Ready(queue, 2), ElementsAre(1, 2, 3));
}

TEST_F(LaunchQueueTest, ASecondTimeChangesNothing) {
  LaunchQueue queue(spans_, {0, 1, 2, 3});
  EXPECT_THAT(Ready(queue, 0), IsEmpty());
  EXPECT_THAT(Ready(queue, 0), IsEmpty());
  EXPECT_TRUE(queue.is_ready(0));
  EXPECT_THAT(Ready(queue, 1), ElementsAre(0));
}

TEST_F(LaunchQueueTest, WhatIsMissingCanBeDeclaredReadyAndTheNextBackwardBeginsAnew) {
  LaunchQueue queue(spans_, {0, 1, 2, 3});
  Ready(queue, 0);
  std::vector<int> launched;
  queue.ReadyAll([&](int bucket) { launched.push_back(bucket); });
  EXPECT_THAT(launched, ElementsAre(0, 1, 2, 3));
  queue.Arm();
  EXPECT_FALSE(queue.is_ready(0));
  EXPECT_FALSE(queue.is_launched(0));
  EXPECT_THAT(Ready(queue, 0), IsEmpty());
  EXPECT_THAT(Ready(queue, 1), ElementsAre(0));
}

TEST_F(LaunchQueueTest, RecordsTheOrderOfReadinessUntilTheNextBackward) {
  LaunchQueue queue(spans_, {0, 1, 2, 3});
  for (const size_t entry : {2, 0, 2}) {
    Ready(queue, entry);
  }
  queue.ReadyAll([](int /*bucket*/) {});
  EXPECT_THAT(queue.readiness(), ElementsAre(2, 0)) << "what was declared ready did not become so";
  EXPECT_EQ(queue.entries(), 4U);
  queue.Arm();
  EXPECT_THAT(queue.readiness(), IsEmpty());
}

TEST_F(LaunchQueueTest, FollowsAnotherOrder) {
  LaunchQueue queue(spans_, {0, 1, 2, 3});
  queue.UseOrder({3, 2, 1, 0});
  queue.Arm();
  EXPECT_THAT(Ready(queue, 3), ElementsAre(3, 2));
  EXPECT_THAT(Ready(queue, 0), IsEmpty());
  EXPECT_THAT(Ready(queue, 1), IsEmpty());
  EXPECT_THAT(Ready(queue, 2), ElementsAre(1, 0));
}

TEST_F(LaunchQueueTest, EntriesOfAUnitAreHeldUntilItEnds) {
  LaunchQueue queue(spans_, {0, 1, 2, 3});
  queue.UseUnits({{0, 1}});
  EXPECT_THAT(Ready(queue, 1), IsEmpty());
  EXPECT_TRUE(queue.is_ready(1));
  EXPECT_THAT(Ready(queue, 0), IsEmpty()) << "its gradients are there, but not on every rank";
  EXPECT_THAT(Ready(queue, 2), IsEmpty());
  const auto end = [&] {
    std::vector<int> launched;
    queue.EndUnit(0, [&](int bucket) { launched.push_back(bucket); });
    return launched;
  };
  EXPECT_THAT(end(), ElementsAre(0, 1));
  EXPECT_THAT(end(), IsEmpty());
  EXPECT_THAT(Ready(queue, 3), ElementsAre(2, 3));
  EXPECT_THAT(queue.readiness(), ElementsAre(2, 0, 1, 3)) << "together, when it ended";
  queue.Arm();
  EXPECT_THAT(Ready(queue, 0), IsEmpty()) << "held anew";
  EXPECT_THAT(end(), ElementsAre(0)) << "entry 1 is missing and gets none";
  EXPECT_TRUE(queue.is_ready(1));
}

TEST_F(LaunchQueueTest, UnitsThatDoNotEndAreReadyWithAllElse) {
  LaunchQueue queue(spans_, {0, 1, 2, 3});
  queue.UseUnits({{1}, {3}});
  Ready(queue, 1);
  std::vector<int> launched;
  queue.ReadyAll([&](int bucket) { launched.push_back(bucket); });
  EXPECT_THAT(launched, ElementsAre(0, 1, 2, 3));
}

}  // namespace
}  // namespace dtrain::plan::launch_queue_test
