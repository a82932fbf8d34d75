// A goal's verdict: met, missed, or without a bound.
#include "bench/goal_line.h"

#include <string>

#include "gtest/gtest.h"

namespace dtrain::bench::goal_line_test {
namespace {

std::string VerdictOfShare(double share) {
  return JudgeShare("x", share, 0.9)["verdict"].get<std::string>();
}

TEST(GoalLine, AShareAboveOneHasNoBound) {
  EXPECT_EQ(VerdictOfShare(0.89), "short");
  EXPECT_EQ(VerdictOfShare(0.9), "ok");
  EXPECT_EQ(VerdictOfShare(1.0), "ok");
  EXPECT_EQ(VerdictOfShare(1.01), "no bound");
}

TEST(GoalLine, OnlyAMetGoalIsOk) {
  EXPECT_TRUE(JudgeShare("x", 0.95, 0.9)["ok"].get<bool>());
  EXPECT_FALSE(JudgeShare("x", 0.5, 0.9)["ok"].get<bool>());
  EXPECT_FALSE(JudgeShare("x", 1.2, 0.9)["ok"].get<bool>());
}

TEST(GoalLine, TheLineSaysWhatTheRowSays) {
  ::testing::internal::CaptureStdout();
  const Json row = JudgeGoal("bench.peak_mib", 64.5, "<=", 65);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(),
            "goal bench.peak_mib measured 64.5 target <= 65 ok\n");
  EXPECT_EQ(row["verdict"], "ok");
  EXPECT_EQ(JudgeGoal("bench.peak_mib", 65.5, "<=", 65)["verdict"], "short");
}

}  // namespace
}  // namespace dtrain::bench::goal_line_test
