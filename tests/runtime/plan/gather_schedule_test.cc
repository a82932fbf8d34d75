#include "runtime/plan/layout/gather_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/numeric/prng.h"

namespace dtrain::plan::gather_schedule_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = GatherAction::Kind;
using Pass = GatherSchedule::Pass;

constexpr int64_t kPlenty = 1'000'000'000;

GatherAction Gather(int bucket) { return {Kind::kGather, bucket}; }
GatherAction Release(int bucket) { return {Kind::kRelease, bucket}; }

// Takes part in a schedule as the engine does, and checks what every caller relies on.
class Player {
 public:
  Player(std::vector<int64_t> sizes, const GatherLimits& limits)
      : sizes_(sizes), limits_(limits), schedule_(std::move(sizes), limits) {
    schedule_.Begin(Pass::kTraining);
  }

  // One operation that reads `buckets`; the actions until it runs, then those after it.
  std::vector<GatherAction> Read(const std::vector<int>& buckets) {
    std::vector<GatherAction> actions;
    for (const int bucket : buckets) {
      schedule_.Use(bucket, actions);
    }
    Apply(actions);
    int64_t needed = 0;
    for (const int bucket : std::set<int>(buckets.begin(), buckets.end())) {
      EXPECT_TRUE(live_.count(bucket)) << "an operation runs without bucket " << bucket;
      needed += sizes_[static_cast<size_t>(bucket)];
    }
    EXPECT_LE(LiveElements(), std::max(limits_.live_max, needed));
    std::vector<GatherAction> after;
    for (const int bucket : buckets) {
      schedule_.Done(bucket, after);
    }
    Apply(after);
    actions.insert(actions.end(), after.begin(), after.end());
    return actions;
  }
  void Begin(Pass pass) { schedule_.Begin(pass); }
  void Update() {
    schedule_.Invalidate();
    live_.clear();
    schedule_.Begin(Pass::kTraining);
  }
  GatherSchedule& schedule() { return schedule_; }

 private:
  int64_t LiveElements() const {
    int64_t elements = 0;
    for (const int bucket : live_) {
      elements += sizes_[static_cast<size_t>(bucket)];
    }
    EXPECT_EQ(elements, schedule_.live_elements());
    return elements;
  }
  void Apply(const std::vector<GatherAction>& actions) {
    for (const GatherAction& action : actions) {
      if (action.kind == Kind::kGather) {
        EXPECT_TRUE(live_.insert(action.bucket).second) << action.bucket << " gathered twice";
      } else {
        EXPECT_EQ(live_.erase(action.bucket), 1U) << action.bucket << " released twice";
      }
    }
  }
  const std::vector<int64_t> sizes_;
  const GatherLimits limits_;
  GatherSchedule schedule_;
  std::set<int> live_;
};

TEST(GatherScheduleTest, TheFirstPassGathersOnDemandAndTheNextAhead) {
  Player player({10, 10, 10, 10}, {.live_max = kPlenty, .reuse_max = kPlenty, .prefetch_max = 20});
  for (const int bucket : {3, 2, 1, 0}) {
    EXPECT_THAT(player.Read({bucket}), ElementsAre(Gather(bucket)));
  }
  player.Update();
  EXPECT_THAT(player.Read({3}), ElementsAre(Gather(3), Gather(2), Gather(1)));
  EXPECT_THAT(player.Read({3}), IsEmpty());
  EXPECT_THAT(player.Read({2}), ElementsAre(Gather(0)));
  EXPECT_THAT(player.Read({1}), IsEmpty());
  EXPECT_THAT(player.Read({0}), IsEmpty());
}

TEST(GatherScheduleTest, WhatIsUsedAgainFarAwayIsReleasedWhenThePassGoesOn) {
  Player player({10, 10, 10}, {.live_max = kPlenty, .reuse_max = 25, .prefetch_max = 0});
  const std::vector<int> pass = {0, 1, 2, 1, 0};
  for (const int bucket : pass) {
    player.Read({bucket});
  }
  player.Update();
  EXPECT_THAT(player.Read({0}), ElementsAre(Gather(0)));
  // From 0 to the next 0 lie 1, 2 and 1 again: 30 elements and its own.
  EXPECT_THAT(player.Read({1}), ElementsAre(Release(0), Gather(1)));
  EXPECT_THAT(player.Read({2}), ElementsAre(Gather(2)));
  EXPECT_THAT(player.Read({1}), IsEmpty());
  EXPECT_THAT(player.Read({0}), ElementsAre(Gather(0)));
}

TEST(GatherScheduleTest, OverTheLimitTheBucketThatIsNeededLastGoes) {
  Player player({10, 10, 10, 10}, {.live_max = 30, .reuse_max = kPlenty, .prefetch_max = 10});
  const std::vector<int> pass = {0, 1, 2, 3, 3, 2, 1, 0};
  for (const int bucket : pass) {
    player.Read({bucket});
  }
  player.Update();
  EXPECT_THAT(player.Read({0}), ElementsAre(Gather(0), Gather(1)));
  EXPECT_THAT(player.Read({1}), ElementsAre(Gather(2)));
  EXPECT_THAT(player.Read({2}), ElementsAre(Release(0), Gather(3)));
  EXPECT_THAT(player.Read({3}), IsEmpty());
  EXPECT_THAT(player.Read({2}), IsEmpty());
  EXPECT_THAT(player.Read({1}), ElementsAre(Release(2), Gather(0)));
}

TEST(GatherScheduleTest, OneOperationMayUseMoreThanTheLimit) {
  Player player({10, 10, 10}, {.live_max = 10, .reuse_max = kPlenty, .prefetch_max = kPlenty});
  EXPECT_THAT(player.Read({0, 1, 2}),
              ElementsAre(Gather(0), Gather(1), Gather(2), Release(0), Release(1)));
  EXPECT_THAT(player.Read({0}), ElementsAre(Release(2), Gather(0)));
}

TEST(GatherScheduleTest, PartsOfAnOperationChangeNothing) {
  Player player({10, 10}, {.live_max = kPlenty, .reuse_max = 0, .prefetch_max = kPlenty});
  std::vector<GatherAction> actions;
  player.schedule().Use(0, actions);
  player.schedule().Use(1, actions);
  actions.clear();
  for (int i = 0; i < 5; ++i) {
    for (const int bucket : {1, 0}) {
      player.schedule().Use(bucket, actions);
      player.schedule().Done(bucket, actions);
    }
  }
  EXPECT_THAT(actions, IsEmpty());
}

TEST(GatherScheduleTest, APassThatLeavesTheRecordIsRecordedAnew) {
  Player player({10, 10, 10}, {.live_max = kPlenty, .reuse_max = kPlenty, .prefetch_max = 10});
  player.Read({0});
  player.Read({1});
  player.Update();
  player.Read({0});
  EXPECT_THAT(player.Read({2}), ElementsAre(Gather(2)));  // Not on record.
  player.Update();
  EXPECT_THAT(player.Read({0}), ElementsAre(Gather(0), Gather(2)));
}

TEST(GatherScheduleTest, EvaluationHasARecordOfItsOwnAndKeepsWhatIsLive) {
  Player player({10, 10, 10}, {.live_max = kPlenty, .reuse_max = kPlenty, .prefetch_max = 10});
  player.Read({0});
  player.Read({1});
  player.Begin(Pass::kEvaluation);
  EXPECT_THAT(player.Read({2}), ElementsAre(Gather(2)));
  EXPECT_THAT(player.Read({0}), IsEmpty());
  player.Update();
  EXPECT_THAT(player.Read({0}), ElementsAre(Gather(0), Gather(1)));
}

// Any program, any limits: the Player's checks hold, and a second schedule does the same.
TEST(GatherScheduleTest, RandomProgramsKeepTheContract) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    SplitMix64 random(seed);
    const auto below = [&](uint64_t bound) { return static_cast<int64_t>(random.Below(bound)); };
    std::vector<int64_t> sizes(static_cast<size_t>(1 + below(8)));
    for (int64_t& size : sizes) {
      size = 1 + below(50);
    }
    const GatherLimits limits{
        .live_max = below(200), .reuse_max = below(200), .prefetch_max = below(200)};
    Player player(sizes, limits);
    Player twin(sizes, limits);
    std::vector<std::vector<int>> program(static_cast<size_t>(1 + below(30)));
    for (auto& reads : program) {
      reads.resize(static_cast<size_t>(1 + below(3)));
      for (int& bucket : reads) {
        bucket = static_cast<int>(below(sizes.size()));
      }
    }
    for (int pass = 0; pass < 6; ++pass) {
      for (const auto& reads : program) {
        if (below(40) > 0) {  // Now and then the program does something else.
          EXPECT_EQ(player.Read(reads), twin.Read(reads));
        }
      }
      if (below(3) == 0) {
        player.Begin(Pass::kTraining);
        twin.Begin(Pass::kTraining);
      } else {
        player.Update();
        twin.Update();
      }
    }
  }
}

TEST(GatherSchedule, WhatMayBeLiveIsPartedByWhatThereIs) {
  const auto share = [](int64_t live_max, int64_t training, int64_t frozen) {
    const LiveShares shares = ShareLive(live_max, training, frozen);
    return std::pair(shares.training, shares.frozen);
  };
  EXPECT_EQ(share(100, 1000, 0), std::pair(int64_t{100}, int64_t{0}));
  EXPECT_EQ(share(100, 20, 1000), std::pair(int64_t{20}, int64_t{80})) << "adapters are all live";
  EXPECT_EQ(share(100, 1000, 20), std::pair(int64_t{80}, int64_t{20}));
  EXPECT_EQ(share(100, 70, 1000), std::pair(int64_t{50}, int64_t{50}));
  EXPECT_EQ(share(0, 70, 1000), std::pair(int64_t{0}, int64_t{0}));
}

}  // namespace
}  // namespace dtrain::plan::gather_schedule_test
