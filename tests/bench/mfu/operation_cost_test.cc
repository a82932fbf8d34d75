#include "bench/mfu/operation_cost.h"

#include <gtest/gtest.h>

namespace dtrain::bench::operation_cost_test {
namespace {

TEST(CostOf, AProductIsTwiceItsThreeSizes) {
  const auto cost = CostOf("aten::mm", {{512, 768}, {768, 3072}}, 4);
  ASSERT_TRUE(cost.has_value());
  EXPECT_EQ(cost->label, "mm 512x768x3072");
  EXPECT_DOUBLE_EQ(cost->flop, 2.0 * 512 * 768 * 3072);
  EXPECT_DOUBLE_EQ(cost->bytes, 4.0 * (512 * 768 + 768 * 3072 + 512 * 3072));
}

TEST(CostOf, AProductOfCodesIsOneOfItsOwn) {
  const auto cost = CostOf("aten::_scaled_mm", {{512, 768}, {768, 3072}, {}, {}}, 1);
  ASSERT_TRUE(cost.has_value());
  EXPECT_EQ(cost->label, "FP8 mm 512x768x3072");
  EXPECT_DOUBLE_EQ(cost->flop, 2.0 * 512 * 768 * 3072);
  EXPECT_DOUBLE_EQ(cost->bytes, 512 * 768 + 768 * 3072 + 2.0 * 512 * 3072);
}

TEST(CostOf, WhatIsAddedToAProductComesFirst) {
  const auto cost = CostOf("aten::addmm", {{30}, {10, 20}, {20, 30}, {}, {}}, 2);
  ASSERT_TRUE(cost.has_value());
  EXPECT_DOUBLE_EQ(cost->flop, 2.0 * 10 * 20 * 30);
}

TEST(CostOf, ABatchOfProductsCountsEach) {
  const auto cost = CostOf("aten::bmm", {{8, 10, 20}, {8, 20, 30}}, 4);
  ASSERT_TRUE(cost.has_value());
  EXPECT_DOUBLE_EQ(cost->flop, 8 * 2.0 * 10 * 20 * 30);
}

TEST(CostOf, CausalAttentionCostsHalfAndItsBackwardTwice) {
  const std::vector<int64_t> query = {2, 12, 1024, 64};
  const std::vector<int64_t> key = {2, 4, 1024, 64};
  const auto forward =
      CostOf("aten::_scaled_dot_product_flash_attention_for_cpu", {query, key, key}, 4);
  const auto backward = CostOf("aten::_scaled_dot_product_flash_attention_for_cpu_backward",
                               {query, query, key, key}, 4);
  ASSERT_TRUE(forward.has_value());
  ASSERT_TRUE(backward.has_value());
  // Per token and layer 4 A k forward and 12 A k in all, k = s / 2 (dtrain/flops.h).
  EXPECT_DOUBLE_EQ(forward->flop, 4.0 * (12 * 64) * 512 * (2 * 1024));
  EXPECT_DOUBLE_EQ(forward->flop + backward->flop, 12.0 * (12 * 64) * 512 * (2 * 1024));
}

TEST(CostOf, UnknownOperationsAndShapesHaveNone) {
  EXPECT_FALSE(CostOf("aten::mul", {{4}, {4}}, 4).has_value());
  EXPECT_FALSE(CostOf("aten::mm", {{4, 4}}, 4).has_value());
  EXPECT_FALSE(CostOf("aten::mm", {{}, {}}, 4).has_value());
  // Only chooses which form runs: its time is that of the form, which is counted.
  EXPECT_FALSE(
      CostOf("aten::scaled_dot_product_attention", {{1, 1, 8, 8}, {1, 1, 8, 8}, {1, 1, 8, 8}}, 4)
          .has_value());
}

TEST(GroupCalls, AddsTheCallsOfOneShapeAndPutsTheLongestFirst) {
  const auto groups = GroupCalls({{"aten::mm", {{2, 3}, {3, 4}}, 4, 1.0},
                                  {"aten::mm", {{20, 3}, {3, 4}}, 4, 5.0},
                                  {"aten::mul", {{2}}, 4, 50.0},
                                  {"aten::mm", {{2, 3}, {3, 4}}, 4, 2.0}});
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].each.label, "mm 20x3x4");
  EXPECT_EQ(groups[1].calls, 2);
  EXPECT_DOUBLE_EQ(groups[1].seconds, 3);
  EXPECT_DOUBLE_EQ(groups[1].flops_per_s(), 2 * 2.0 * 2 * 3 * 4 / 3);
}

}  // namespace
}  // namespace dtrain::bench::operation_cost_test
