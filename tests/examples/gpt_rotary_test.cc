// The tables of rotary angles: what a captured graph reads stays, however lengths come.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "gpt/rotary.h"

namespace gpt_rotary_test {
namespace {

constexpr int64_t kHeadDim = 8;

GptOptions Options() {
  GptOptions options;
  options.head_dim = kHeadDim;
  return options;
}

// Rows of `positions` or more that say what their place says.
void ExpectAngles(const dtrain::ops::RopeTable& table, int64_t positions) {
  ASSERT_GE(table.cos.size(0), positions);
  ASSERT_EQ(table.sin.sizes(), table.cos.sizes());
  const at::Tensor angles =
      at::outer(at::arange(0, table.cos.size(0), at::kFloat), RotaryFrequencies({}, kHeadDim));
  EXPECT_TRUE(at::equal(table.cos, angles.cos()));
  EXPECT_TRUE(at::equal(table.sin, angles.sin()));
}

TEST(RotaryTableTest, AShorterSequencesTableStaysWhereItIs) {
  RotaryTable tables(Options());
  const at::Tensor cos = tables.UpTo(4, at::kCPU).cos;
  const at::Tensor sin = tables.UpTo(4, at::kCPU).sin;
  const auto& longer = tables.UpTo(9, at::kCPU);
  EXPECT_FALSE(longer.cos.is_same(cos));
  ExpectAngles(longer, 9);
  EXPECT_EQ(cos.use_count(), 2) << "the table was dropped: a graph has its address alone";
  EXPECT_EQ(sin.use_count(), 2);
  const auto& again = tables.UpTo(4, at::kCPU);
  EXPECT_TRUE(again.cos.is_same(cos));
  EXPECT_TRUE(again.sin.is_same(sin));
  ExpectAngles(again, 4);
}

TEST(RotaryTableTest, LengthsThatAlternateMakeNoNewTables) {
  RotaryTable tables(Options());
  const at::Tensor shorter = tables.UpTo(4, at::kCPU).cos;
  const at::Tensor longer = tables.UpTo(9, at::kCPU).cos;
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(tables.UpTo(1 + i % 4, at::kCPU).cos.is_same(shorter));
    EXPECT_TRUE(tables.UpTo(5 + i % 5, at::kCPU).cos.is_same(longer));
  }
}

TEST(RotaryTableTest, LengthsThatGrowMakeFew) {
  RotaryTable tables(Options());
  std::set<const void*> addresses;  // All are kept: none is an earlier one's again.
  for (int64_t sequence = 1; sequence <= 100; ++sequence) {
    addresses.insert(tables.UpTo(sequence, at::kCPU).cos.const_data_ptr());
  }
  EXPECT_EQ(addresses.size(), 8U) << "1, 2, 4 ... 128 positions";
}

}  // namespace
}  // namespace gpt_rotary_test
