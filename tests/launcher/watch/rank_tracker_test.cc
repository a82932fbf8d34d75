// Tests of the progress that a rank's beats show, and of what is not counted against it.
#include "launcher/watch/rank_tracker.h"

#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/watch/hang.h"

namespace dtrain::launcher::rank_tracker_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr int64_t kSecond = 1'000'000'000;

AgentMessage Beat(uint64_t marks, const char* phase = "forward") {
  AgentMessage message;
  message.kind = AgentMessage::Kind::kBeat;
  message.rank = 1;
  message.pid = 77;
  message.step = 5;
  message.phase = phase;
  message.marks = marks;
  message.limits = {.fixed_s = -1, .patience_s = 10, .slow_s = 600};
  return message;
}

AgentMessage InCollective(uint64_t marks, uint64_t left, uint64_t entered) {
  AgentMessage message = Beat(marks);
  message.groups.push_back({.group = "world", .entered = entered, .left = left, .call = "barrier"});
  return message;
}

class RankTrackerTest : public ::testing::Test {
 protected:
  double StillAt(double seconds) const {
    return tracker_.Views(static_cast<int64_t>(seconds * kSecond)).at(0).still_s;
  }
  void TakeAt(double seconds, const AgentMessage& message) {
    tracker_.Take(message, static_cast<int64_t>(seconds * kSecond));
  }
  RankTracker tracker_{3, "host-a"};
};

TEST_F(RankTrackerTest, BeatsWithoutProgressDoNotMoveIt) {
  TakeAt(10, Beat(1));
  TakeAt(11, Beat(1));
  TakeAt(12, Beat(1));
  EXPECT_EQ(StillAt(13), 3);
  const RankView view = tracker_.Views(13 * kSecond).at(0);
  EXPECT_EQ(view.silent_s, 1);
  EXPECT_EQ(view.rank, 1);
  EXPECT_EQ(view.node, 3);
  EXPECT_EQ(view.host, "host-a");
  EXPECT_EQ(view.phase, "forward");
}

TEST_F(RankTrackerTest, APhaseAndACollectiveAreProgress) {
  TakeAt(10, Beat(1));
  TakeAt(12, Beat(2));  // The same phase, as in the next micro-batch.
  EXPECT_EQ(StillAt(12), 0);
  TakeAt(13, InCollective(2, 7, 8));
  EXPECT_EQ(StillAt(13), 0);
  TakeAt(14, InCollective(2, 7, 8));
  EXPECT_EQ(StillAt(14), 1);
  TakeAt(15, Beat(2));  // Says nothing of collectives, which are as they were.
  EXPECT_EQ(StillAt(15), 2);
  EXPECT_NE(tracker_.Views(15 * kSecond).at(0).Inside(), nullptr);
  TakeAt(16, InCollective(2, 8, 8));
  EXPECT_EQ(StillAt(16), 0);
}

TEST_F(RankTrackerTest, ADiskOrADebuggerExplainsThePauseUntilTheNextProgress) {
  TakeAt(10, Beat(1));
  tracker_.Observe(1, {.waits_for_disk = true, .is_debugged = true});
  tracker_.Observe(1, {});  // Between two reads, or after the debugger has let it go.
  EXPECT_TRUE(tracker_.Views(12 * kSecond).at(0).waits_for_disk);
  EXPECT_TRUE(tracker_.Views(12 * kSecond).at(0).is_debugged);
  TakeAt(13, Beat(2));
  EXPECT_FALSE(tracker_.Views(13 * kSecond).at(0).waits_for_disk);
  EXPECT_FALSE(tracker_.Views(13 * kSecond).at(0).is_debugged);
}

TEST_F(RankTrackerTest, TimeWithoutACpuIsNotCounted) {
  TakeAt(10, Beat(1));
  tracker_.Observe(1, {.cpu_wait_nanos = {{77, 5 * kSecond}, {78, kSecond}}});
  EXPECT_EQ(StillAt(12), 2) << "what was before the first look is not known";
  tracker_.Observe(1, {.cpu_wait_nanos = {{77, 5 * kSecond + kSecond / 2}, {78, 3 * kSecond}}});
  EXPECT_EQ(StillAt(14), 2) << "thread 78 has waited for 2 s";
  TakeAt(15, Beat(2));
  EXPECT_EQ(StillAt(16), 1);
}

TEST_F(RankTrackerTest, TimeInWhichTheAgentSleptIsNotCounted) {
  TakeAt(10, Beat(1));
  tracker_.AgentSlept(30);
  EXPECT_NEAR(StillAt(41), 1, 1e-9);
  EXPECT_NEAR(tracker_.Views(41 * kSecond).at(0).silent_s, 1, 1e-9);
}

TEST_F(RankTrackerTest, AStoppedProcessIsSeenUntilItMoves) {
  TakeAt(10, Beat(1));
  tracker_.Observe(1, {.is_stopped = true});
  EXPECT_TRUE(tracker_.Views(11 * kSecond).at(0).is_stopped);
  TakeAt(12, Beat(2));
  EXPECT_FALSE(tracker_.Views(12 * kSecond).at(0).is_stopped);
}

TEST_F(RankTrackerTest, ARankThatSaysItsEndHasEnded) {
  TakeAt(10, Beat(1));
  AgentMessage done;
  done.kind = AgentMessage::Kind::kDone;
  done.rank = 1;
  TakeAt(11, done);
  EXPECT_TRUE(tracker_.Views(11 * kSecond).at(0).has_ended);
  EXPECT_THAT(tracker_.Suspects(100 * kSecond), IsEmpty());
}

TEST_F(RankTrackerTest, OnlyARankThatIsStillForAWhileIsLookedAt) {
  TakeAt(10, Beat(1));
  EXPECT_THAT(tracker_.Suspects(10 * kSecond + kSecond / 10), IsEmpty());
  EXPECT_THAT(tracker_.Suspects(11 * kSecond), ElementsAre(Pair(77, 1)));
}

TEST_F(RankTrackerTest, TheLimitIsLearntFromStepsThatAreNoWarmUp) {
  EXPECT_EQ(tracker_.Steps().steps, 0);
  for (int step = 1; step <= 203; ++step) {
    AgentMessage message = Beat(static_cast<uint64_t>(step));
    // Three slow first steps, then 198 of 0.1 s and two of 0.4 s.
    const double seconds = step <= 3 ? 60 : step > 201 ? 0.4 : 0.1;
    message.times = {.step = step, .whole_s = seconds};
    TakeAt(step, message);
  }
  EXPECT_EQ(tracker_.Steps().steps, 203);
  EXPECT_EQ(tracker_.Steps().p99_s, 0.4) << "the 199th of 200";
}

TEST_F(RankTrackerTest, ALongPauseWithinAStepIsRememberedAndOneOfASaveIsNot) {
  double now = 0;
  uint64_t marks = 0;
  const auto go_on = [&](double seconds, const char* phase) {
    now += seconds;
    AgentMessage message = Beat(++marks, phase);
    message.times = {.step = static_cast<int64_t>(marks), .whole_s = 0.1};
    TakeAt(now, message);
  };
  go_on(5, "forward");
  go_on(5, "forward");  // The first steps may be slow.
  for (int step = 0; step < 20; ++step) {
    go_on(0.125, "forward");
  }
  EXPECT_DOUBLE_EQ(tracker_.Steps().pause_s, 0.125);
  go_on(0.75, "save");
  EXPECT_DOUBLE_EQ(tracker_.Steps().pause_s, 0.75) << "it was in forward before";
  go_on(30, "forward");
  EXPECT_DOUBLE_EQ(tracker_.Steps().pause_s, 0.75);
}

TEST_F(RankTrackerTest, APauseOfDataWithALimitOfTheirOwnSaysNothingOfOtherPhases) {
  double now = 0;
  uint64_t marks = 0;
  const auto go_on = [&](double seconds, const char* phase) {
    now += seconds;
    AgentMessage message = Beat(++marks, phase);
    message.limits.data_s = 60;
    message.times = {.step = static_cast<int64_t>(marks), .whole_s = 0.1};
    TakeAt(now, message);
  };
  for (int step = 0; step < 20; ++step) {
    go_on(0.125, "data");
    go_on(0.125, "forward");
  }
  go_on(0.125, "data");
  go_on(40, "forward");
  EXPECT_DOUBLE_EQ(tracker_.Steps().pause_s, 0.125);
  go_on(0.5, "update");
  EXPECT_DOUBLE_EQ(tracker_.Steps().pause_s, 0.5);
}

}  // namespace
}  // namespace dtrain::launcher::rank_tracker_test
