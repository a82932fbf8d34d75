// Where the elements that one rank has stored belong in another.
#include "runtime/checkpoint/restore/shared_ranges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/numeric/prng.h"

namespace dtrain::shared_ranges_test {
namespace {

using plan::OwnedRange;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SharedRangesTest, PartsThatFollowOneAnotherInBothAreOne) {
  const std::vector<OwnedRange> stored = {{{0, 10}, 0}, {{10, 20}, 10}, {{40, 50}, 20}};
  EXPECT_THAT(SharedRanges(stored, stored), ElementsAre(SharedRange{0, 0, 30}));
  const std::vector<OwnedRange> owned = {{{5, 15}, 0}, {{45, 60}, 10}};
  EXPECT_THAT(SharedRanges(stored, owned),
              ElementsAre(SharedRange{5, 0, 10}, SharedRange{25, 10, 5}));
  EXPECT_EQ(ElementsOf(stored), 30);
  EXPECT_EQ(ElementsOf(SharedRanges(stored, owned)), 15);
}

TEST(SharedRangesTest, WithNothingInCommonThereIsNone) {
  const std::vector<OwnedRange> stored = {{{0, 10}, 0}, {{10, 10}, 10}};
  const std::vector<OwnedRange> owned = {{{10, 20}, 0}};
  EXPECT_THAT(SharedRanges(stored, owned), IsEmpty());
  EXPECT_THAT(SharedRanges({}, owned), IsEmpty());
  EXPECT_THAT(SharedRanges(stored, {}), IsEmpty());
}

// Cuts [0, total) at random places and deals the parts to `holders`.
std::vector<std::vector<OwnedRange>> Deal(int64_t total, size_t holders, SplitMix64& random) {
  std::vector<std::vector<OwnedRange>> all(holders);
  std::vector<int64_t> used(holders);
  for (int64_t at = 0; at < total;) {
    const int64_t end = std::min(total, at + 1 + static_cast<int64_t>(random.Below(9)));
    const size_t holder = random.Below(holders);
    all[holder].push_back({{at, end}, used[holder]});
    used[holder] += end - at;
    at = end;
  }
  return all;
}

TEST(SharedRangesTest, EveryElementIsFoundOnceWhereverItLies) {
  constexpr uint64_t kSeed = 20261126;
  constexpr int64_t kTotal = 200;
  SplitMix64 random(kSeed);
  for (int round = 0; round < 200; ++round) {
    const auto stored = Deal(kTotal, 1 + random.Below(4), random);
    const auto owned = Deal(kTotal, 1 + random.Below(3), random);
    for (const std::vector<OwnedRange>& mine : owned) {
      std::map<int64_t, int64_t> filled;  // Element by the place that it was put in.
      for (const std::vector<OwnedRange>& theirs : stored) {
        std::vector<int64_t> held;  // The holder's elements in its own order.
        for (const OwnedRange& range : theirs) {
          for (int64_t i = range.flat.begin; i < range.flat.end; ++i) {
            held.push_back(i);
          }
        }
        for (const SharedRange& range : SharedRanges(theirs, mine)) {
          for (int64_t i = 0; i < range.elements; ++i) {
            EXPECT_TRUE(
                filled.emplace(range.to + i, held.at(static_cast<size_t>(range.from + i))).second)
                << "seed " << kSeed << ", round " << round;
          }
        }
      }
      for (const OwnedRange& range : mine) {
        for (int64_t i = range.flat.begin; i < range.flat.end; ++i) {
          EXPECT_EQ(filled[range.local_of(i)], i) << "seed " << kSeed << ", round " << round;
        }
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::shared_ranges_test
