#include "launcher/restart.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/exit_table.h"

namespace dtrain::launcher::restart_test {
namespace {

RestartInput After(int exit_code, int signal = 0) {
  RestartInput input;
  input.cause.exit_code = exit_code;
  input.cause.signal = signal;
  input.restarts_max = 5;
  input.without_progress = 1;
  return input;
}

TEST(RestartDecision, FollowsTheExitCodeTable) {
  EXPECT_TRUE(RestartDecision(After(75)).restart);
  EXPECT_TRUE(RestartDecision(After(70)).restart);
  for (const int code : {1, 2, 17, 64, 93, 126, 127, 130, 143}) {
    EXPECT_FALSE(RestartDecision(After(code)).restart) << code;
    EXPECT_EQ(RestartDecision(After(code)).exit_code, code);
  }
}

TEST(RestartDecision, RestartsKillsAndCrashesButNotFinalSignals) {
  for (const int signal : {SIGKILL, SIGSEGV, SIGABRT, SIGBUS, SIGTERM}) {
    EXPECT_TRUE(RestartDecision(After(0, signal)).restart) << signal;
  }
  for (const int signal : {SIGILL, SIGFPE, SIGSYS, SIGINT}) {
    EXPECT_FALSE(RestartDecision(After(0, signal)).restart) << signal;
  }
}

TEST(RestartDecision, RestartsABugOnce) {
  RestartInput input = After(70);
  input.bug_restarts_used = 1;
  EXPECT_FALSE(RestartDecision(input).restart);
  EXPECT_EQ(RestartDecision(input).exit_code, 70);
}

TEST(RestartDecision, ALostNodeOfAnElasticJobUsesNoneOfMaxRestarts) {
  RestartInput input;  // --max-restarts is 0.
  input.node_lost = true;
  input.cause.exit_code = 64;  // What a survivor ended with does not count.
  EXPECT_TRUE(RestartDecision(input).restart);
  EXPECT_EQ(RestartDecision(input).wait, absl::ZeroDuration()) << "there is a new durable step";
  input.without_progress = 2;
  EXPECT_EQ(RestartDecision(input).wait, absl::Seconds(2));
  input.without_progress = kAttemptsWithoutProgressMax;
  EXPECT_FALSE(RestartDecision(input).restart);
  EXPECT_EQ(RestartDecision(input).exit_code, 93);
}

TEST(RestartDecision, DoesNothingUnasked) {
  RestartInput input = After(75);
  input.restarts_max = 0;
  EXPECT_FALSE(RestartDecision(input).restart);
  EXPECT_EQ(RestartDecision(input).exit_code, 75);
}

TEST(RestartDecision, EndsWith93AfterThreeAttemptsWithoutProgress) {
  RestartInput input = After(0, SIGKILL);
  input.without_progress = kAttemptsWithoutProgressMax;
  EXPECT_FALSE(RestartDecision(input).restart);
  EXPECT_EQ(RestartDecision(input).exit_code, 93);
}

TEST(RestartDecision, EndsWithTheCauseWhenRestartsAreUsedUp) {
  RestartInput input = After(75);
  input.restarts_used = 5;
  EXPECT_FALSE(RestartDecision(input).restart);
  EXPECT_EQ(RestartDecision(input).exit_code, 75);
}

TEST(RestartDecision, WaitsLongerWhileNothingImproves) {
  RestartInput input = After(75);
  input.without_progress = 0;
  EXPECT_EQ(RestartDecision(input).wait, absl::ZeroDuration());
  input.without_progress = 1;
  EXPECT_EQ(RestartDecision(input).wait, absl::Seconds(1));
  input.without_progress = 2;
  EXPECT_EQ(RestartDecision(input).wait, absl::Seconds(2));
}

TEST(RestartDecision, TheLastAllowedRestartIsTaken) {
  RestartInput input = After(75);
  input.restarts_used = 4;
  EXPECT_TRUE(RestartDecision(input).restart);
  EXPECT_EQ(RestartDecision(input).reason, "restart 5 of 5");
  input.restarts_max = 1;
  input.restarts_used = 0;
  EXPECT_EQ(RestartDecision(input).reason, "restart 1 of 1");
  input.without_progress = kAttemptsWithoutProgressMax - 1;
  EXPECT_TRUE(RestartDecision(input).restart);
}

TEST(RestartDecision, SaysWhyThereIsNone) {
  EXPECT_EQ(RestartDecision(After(64)).reason, "exit code 64 is not restarted");
  EXPECT_EQ(RestartDecision(After(0, SIGSYS)).reason, "a rank that SIGSYS ended is not restarted");
  EXPECT_EQ(RestartDecision(After(0, SIGSYS)).exit_code, 128 + SIGSYS);
  RestartInput input = After(70);
  input.bug_restarts_used = 1;
  EXPECT_EQ(RestartDecision(input).reason, "exit code 70 is restarted only once");
  input = After(75);
  input.without_progress = kAttemptsWithoutProgressMax;
  EXPECT_EQ(RestartDecision(input).reason,
            "3 attempts in a row without a new committed checkpoint");
  input = After(75);
  input.restarts_used = 5;
  EXPECT_EQ(RestartDecision(input).reason, "all 5 restarts of --max-restarts are used");
  input.restarts_max = 0;
  EXPECT_EQ(RestartDecision(input).reason, "--max-restarts is 0");
}

// The decision and the printed table must not drift apart.
TEST(RestartDecision, AgreesWithThePrintedTable) {
  for (const ExitRow& row : kExitTable) {
    if (row.code != 0) {
      const bool restarts = row.restart == Restart::kYes || row.restart == Restart::kOnce;
      EXPECT_EQ(RestartDecision(After(row.code)).restart, restarts) << row.code;
    }
  }
}

}  // namespace
}  // namespace dtrain::launcher::restart_test
