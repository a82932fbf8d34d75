#include "runtime/plan/data/text/pack_samples.h"

#include <algorithm>

#include "base/numeric/prng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::pack_samples_test {
namespace {

using ::testing::ElementsAre;
using Rows = std::vector<std::vector<uint32_t>>;

TEST(PackSamplesTest, TheFullestRowWithRoomTakesTheNextLongest) {
  // 6 and 5 begin rows; 4 fills the row of 6; 3 goes beside 5, and the last 3 begins a row.
  EXPECT_THAT(PackSamples({3, 6, 4, 5, 3}, 10),
              ElementsAre(ElementsAre(1, 2), ElementsAre(3, 0), ElementsAre(4)));
  EXPECT_THAT(PackSamples({10, 10}, 10), ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_EQ(PackSamples({}, 10), Rows());
}

// The definition, by a search through all rows.
Rows Slowly(const std::vector<int32_t>& lengths, int64_t row_length) {
  std::vector<uint32_t> order(lengths.size());
  for (uint32_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return lengths[a] > lengths[b]; });
  Rows rows;
  std::vector<int64_t> left;
  for (const uint32_t sample : order) {
    size_t best = rows.size();
    for (size_t row = 0; row < rows.size(); ++row) {
      const bool fits = left[row] >= lengths[sample];
      if (fits && (best == rows.size() || left[row] < left[best])) {
        best = row;
      }
    }
    if (best == rows.size()) {
      rows.emplace_back();
      left.push_back(row_length);
    }
    rows[best].push_back(sample);
    left[best] -= lengths[sample];
  }
  return rows;
}

TEST(PackSamplesTest, EqualsItsDefinitionAndWastesLittle) {
  SplitMix64 random(20261126);
  for (const int64_t row_length : {1, 7, 64, 1024}) {
    std::vector<int32_t> lengths;
    int64_t sum = 0;
    for (int i = 0; i < 700; ++i) {
      lengths.push_back(1 + static_cast<int32_t>(random.Below(static_cast<uint64_t>(row_length))));
      sum += lengths.back();
    }
    const Rows rows = PackSamples(lengths, row_length);
    EXPECT_EQ(rows, Slowly(lengths, row_length)) << row_length;
    // Best fit decreasing needs at most 11/9 of the best possible number of rows, and 4 more.
    const int64_t least = (sum + row_length - 1) / row_length;
    EXPECT_GE(static_cast<int64_t>(rows.size()), least);
    if (row_length == 1024) {
      EXPECT_LE(static_cast<int64_t>(rows.size()), least * 11 / 9 + 4);
    }
  }
}

}  // namespace
}  // namespace dtrain::plan::pack_samples_test
