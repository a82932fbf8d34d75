#include "runtime/plan/layout/need_order.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::need_order_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(NeedOrder, FirstReadsComeFirstAndTheRestFromTheLayoutsEnd) {
  EXPECT_THAT(NeedOrder(5, {3, 1}), ElementsAre(3, 1, 4, 2, 0));
  EXPECT_THAT(NeedOrder(3, {0, 1, 2}), ElementsAre(0, 1, 2));
}

TEST(NeedOrder, WithoutARecordItIsTheReverseOfTheLayout) {
  EXPECT_THAT(NeedOrder(3, {}), ElementsAre(2, 1, 0));
  EXPECT_THAT(NeedOrder(0, {}), IsEmpty());
}

TEST(NeedOrder, OnlyTheFirstReadOfABucketCounts) {
  EXPECT_THAT(NeedOrder(3, {1, 1, 0, 1, 2, 0}), ElementsAre(1, 0, 2));
}

}  // namespace
}  // namespace dtrain::plan::need_order_test
