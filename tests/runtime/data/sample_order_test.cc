// The order of a dataset's samples: permutations that depend on seed and epoch alone.
#include "runtime/data/sample_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace dtrain::sample_order_test {
namespace {

std::vector<int64_t> Epoch(const SampleOrder& order, int64_t epoch) {
  std::vector<int64_t> indices;
  const int64_t samples = order.options().epoch_samples;
  for (int64_t i = 0; i < samples; ++i) {
    const SampleOrder::Place place = order.At(epoch * samples + i);
    EXPECT_EQ(place.epoch, epoch);
    indices.push_back(place.index);
  }
  return indices;
}

std::vector<int64_t> UpTo(int64_t size) {
  std::vector<int64_t> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST(SampleOrderTest, EachEpochIsAnotherPermutationThatTheSeedChooses) {
  for (const int64_t size : {1, 2, 7, 64, 1000}) {
    const SampleOrder order({.size = size, .epoch_samples = size, .seed = 5});
    for (const int64_t epoch : {0, 1, 17}) {
      EXPECT_THAT(Epoch(order, epoch), ::testing::UnorderedElementsAreArray(UpTo(size)));
    }
  }
  const SampleOrder order({.size = 64, .epoch_samples = 64, .seed = 5});
  EXPECT_NE(Epoch(order, 0), UpTo(64));
  EXPECT_NE(Epoch(order, 0), Epoch(order, 1));
  EXPECT_NE(Epoch(order, 0), Epoch(SampleOrder({.size = 64, .epoch_samples = 64, .seed = 6}), 0));
  EXPECT_EQ(Epoch(order, 3), Epoch(SampleOrder({.size = 64, .epoch_samples = 64, .seed = 5}), 3));
}

TEST(SampleOrderTest, WithoutShufflingItIsTheOrderOfIndices) {
  const SampleOrder order({.size = 5, .epoch_samples = 5, .seed = 5, .shuffle = false});
  EXPECT_EQ(Epoch(order, 0), UpTo(5));
  EXPECT_EQ(Epoch(order, 1), UpTo(5));
}

TEST(SampleOrderTest, WhatFillsNoGlobalBatchIsLeftOutAndIsAnotherPartInEachEpoch) {
  EXPECT_EQ(EpochSamples(10, 4, /*drop_last=*/true), 8);
  EXPECT_EQ(EpochSamples(10, 4, /*drop_last=*/false), 10);
  const SampleOrder order({.size = 10, .epoch_samples = 8, .seed = 1});
  std::vector<bool> seen(10);
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    std::vector<int64_t> indices = Epoch(order, epoch);
    std::sort(indices.begin(), indices.end());
    EXPECT_EQ(std::unique(indices.begin(), indices.end()), indices.end()) << "one twice";
    for (const int64_t index : indices) {
      seen[static_cast<size_t>(index)] = true;
    }
  }
  EXPECT_THAT(seen, ::testing::Each(true));
}

TEST(SampleOrderTest, GoesOnAtTheSamePlaceOfTheEpochWithAnotherGlobalBatch) {
  const SampleOrder order({.size = 10, .epoch_samples = 9, .seed = 1});  // Batches of 3.
  EXPECT_EQ(order.Continue(/*sample=*/20, /*epoch_samples=*/9), 20);
  EXPECT_EQ(order.Continue(/*sample=*/20, /*epoch_samples=*/8), 2 * 9 + 4);  // Batches of 4.
  EXPECT_EQ(order.Continue(/*sample=*/9, /*epoch_samples=*/10), 9) << "its tenth is left out";
}

}  // namespace
}  // namespace dtrain::sample_order_test
