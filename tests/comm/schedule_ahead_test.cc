// Transfers of a step that begin during the step before must not touch memory which that step still
// uses.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "comm/collectives/schedule.h"

namespace dtrain::comm::schedule_ahead_test {
namespace {

// Elements of a range as numbers that tell areas apart; input and output are one area in place.
std::set<std::pair<Area, size_t>> ElementsOf(const Range& range, bool in_place) {
  std::set<std::pair<Area, size_t>> elements;
  const Area area = in_place && range.area == Area::kInput ? Area::kOutput : range.area;
  for (size_t i = 0; i < range.count; ++i) {
    elements.emplace(area, range.start + i);
  }
  return elements;
}

bool Meet(const std::set<std::pair<Area, size_t>>& a, const std::set<std::pair<Area, size_t>>& b) {
  return std::any_of(a.begin(), a.end(),
                     [&b](const auto& element) { return b.count(element) != 0; });
}

// The elements that a step reads and writes after it has begun.
struct Touched {
  std::set<std::pair<Area, size_t>> read;
  std::set<std::pair<Area, size_t>> written;
};

Touched TouchedBy(const Step& step, bool in_place, bool transfers_only) {
  Touched touched;
  const auto add = [in_place](std::set<std::pair<Area, size_t>>& to, const Range& range) {
    to.merge(ElementsOf(range, in_place));
  };
  for (const Message& message : step.sends) {
    add(touched.read, message.range);
  }
  for (const Message& message : step.receives) {
    add(touched.written, message.range);
  }
  if (!transfers_only && !step.inputs.empty()) {
    add(touched.written, step.output);
    for (const Range& input : step.inputs) {
      add(step.pairwise ? touched.written : touched.read, input);
    }
  }
  return touched;
}

TEST(MayBeginDuringTest, NoStepThatBeginsEarlyTouchesWhatTheOneBeforeStillUses) {
  int early = 0;
  for (const CallKind kind : {CallKind::kAllReduce, CallKind::kReduceScatter, CallKind::kAllGather,
                              CallKind::kBroadcast, CallKind::kAllToAll}) {
    for (const Algorithm algorithm :
         {Algorithm::kDirect, Algorithm::kRing, Algorithm::kDoubling, Algorithm::kHalving}) {
      for (const int size : {2, 3, 4, 8}) {
        if (!Schedule::HasForm(kind, algorithm, size)) {
          continue;
        }
        for (const bool pairwise : {false, true}) {
          if (pairwise && (kind != CallKind::kAllReduce || (size & (size - 1)) != 0)) {
            continue;
          }
          const bool in_place = kind == CallKind::kAllReduce || kind == CallKind::kBroadcast;
          // Elements so wide that a chunk holds only a few.
          const ScheduleOptions options{.kind = kind,
                                        .algorithm = algorithm,
                                        .rank = size - 1,
                                        .size = size,
                                        .root = 0,
                                        .count = 300,
                                        .element_bytes = size_t{1} << 15,
                                        .pairwise = pairwise};
          const Schedule schedule(options);
          for (size_t index = 0; index + 1 < schedule.steps(); ++index) {
            Step now;
            Step next;
            schedule.Fill(index, now);
            schedule.Fill(index + 1, next);
            if (!MayBeginDuring(now, next, in_place)) {
              continue;
            }
            ++early;
            const Touched before = TouchedBy(now, in_place, /*transfers_only=*/false);
            const Touched after = TouchedBy(next, in_place, /*transfers_only=*/true);
            EXPECT_FALSE(Meet(after.read, before.written)) << "sends what is not there yet";
            EXPECT_FALSE(Meet(after.written, before.read)) << "overwrites what is still read";
            EXPECT_FALSE(Meet(after.written, before.written)) << "two writers";
          }
        }
      }
    }
  }
  EXPECT_GT(early, 100);
}

TEST(MayBeginDuringTest, EveryStepOfADirectAllReduceMay) {
  for (const int size : {2, 3, 8}) {
    for (const bool pairwise : {false, true}) {
      if (pairwise && size == 3) {
        continue;
      }
      const Schedule schedule({.kind = CallKind::kAllReduce,
                               .rank = 1,
                               .size = size,
                               .count = size_t{16} << 20,
                               .element_bytes = 4,
                               .pairwise = pairwise});
      ASSERT_GT(schedule.steps(), 30U);
      for (size_t index = 0; index + 1 < schedule.steps(); ++index) {
        Step now;
        Step next;
        schedule.Fill(index, now);
        schedule.Fill(index + 1, next);
        EXPECT_TRUE(MayBeginDuring(now, next, /*in_place=*/true)) << index;
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::comm::schedule_ahead_test
