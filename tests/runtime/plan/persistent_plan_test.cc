#include "runtime/plan/layout/persistent_plan.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::persistent_plan_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ParamLayout Layout() {
  const auto layout = ParamLayout::Create({{"a", {100, 50}, DType::kFloat32},
                                           {"b", {7}, DType::kFloat32},
                                           {"empty", {0}, DType::kFloat32},
                                           {"c", {300}, DType::kFloat32},
                                           {"d", {301}, DType::kFloat32},
                                           {"e", {5}, DType::kFloat32}});
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *layout;
}

// Entries are numbered from the last registered: e 0, d 1, c 2, empty 3, b 4, a 5.
TEST(PersistentPlan, TakesWhatIsAtMostTheThresholdInTheOrderOfRegistration) {
  const ParamLayout layout = Layout();
  const auto entries = [&](int64_t parameter, int64_t model) {
    return PersistentEntries(layout, {.parameter_max = parameter, .model_max = model});
  };
  constexpr int64_t kAny = INT64_MAX;
  EXPECT_THAT(entries(0, kAny), IsEmpty());
  EXPECT_THAT(entries(300, kAny), ElementsAre(0, 2, 4)) << "300 itself persists, 301 does not";
  EXPECT_THAT(entries(100000, kAny), ElementsAre(0, 1, 2, 4, 5));
  EXPECT_THAT(entries(300, 307), ElementsAre(2, 4)) << "b and c fill it";
  EXPECT_THAT(entries(300, 306), ElementsAre(0, 4))
      << "what does not fit is left out, not the rest";
}

TEST(PersistentPlan, LeavesOutWhatBeginsInAUnitAndDoesNotCountIt) {
  const ParamLayout layout = Layout();
  const FlatRange unit{layout.entries()[1].offset, layout.entries()[3].offset};  // d and c.
  EXPECT_THAT(PersistentEntries(layout, {.parameter_max = 300, .model_max = 307}, {unit}),
              ElementsAre(0, 4));
}

TEST(PersistentPlan, EveryElementComesFromOneRankToItsPlace) {
  const ParamLayout layout = Layout();
  for (const int world_size : {1, 2, 3, 5}) {
    const auto shards = ShardPlan::Create(
        layout, {.buckets = {.bucket_elements = 400, .first_bucket_elements = 200},
                 .world_size = world_size});
    ASSERT_TRUE(shards.ok()) << shards.status();
    const PersistentPlan plan = MakePersistentPlan(layout, *shards, world_size,
                                                   {.parameter_max = 301, .model_max = INT64_MAX});
    ASSERT_THAT(plan.entries, ElementsAre(0, 1, 2, 4));
    EXPECT_THAT(plan.offsets, ElementsAre(0, 32, 352, 672)) << "aligned as the layout is";
    EXPECT_EQ(plan.elements, 704);
    std::vector<int> writes(static_cast<size_t>(plan.elements), 0);
    int64_t largest = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      const std::vector<OwnedRange> owned = shards->owned(rank);
      int64_t elements = 0;
      for (const PersistentPiece& piece : plan.pieces[static_cast<size_t>(rank)]) {
        elements += piece.elements;
        for (int64_t i = 0; i < piece.elements; ++i) {
          ++writes[static_cast<size_t>(piece.at + i)];
          // The rank keeps at `local` the element of the layout that belongs at `at`.
          for (size_t place = 0; place < plan.entries.size(); ++place) {
            const LayoutEntry& entry = layout.entries()[plan.entries[place]];
            const int64_t within = piece.at + i - plan.offsets[place];
            if (within < 0 || within >= entry.elements) {
              continue;
            }
            bool found = false;
            for (const OwnedRange& range : owned) {
              const int64_t element = entry.offset + within;
              found = found || (range.flat.begin <= element && element < range.flat.end &&
                                range.local_of(element) == piece.local + i);
            }
            EXPECT_TRUE(found) << entry.name << " " << within << " on rank " << rank;
          }
        }
      }
      largest = std::max(largest, elements);
    }
    EXPECT_EQ(plan.rank_elements_max, largest);
    EXPECT_EQ(std::accumulate(writes.begin(), writes.end(), 0), 5 + 301 + 300 + 7);
    EXPECT_EQ(*std::max_element(writes.begin(), writes.end()), 1);
  }
}

}  // namespace
}  // namespace dtrain::plan::persistent_plan_test
