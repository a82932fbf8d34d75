#include "launcher/restart.h"

#include <cerrno>
#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text/utf8.h"
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

TEST(HostTrouble, IsWhatAnotherHostNeedNotHave) {
  for (const int number : {ENOSPC, EDQUOT, EROFS, EACCES, EIO}) {
    const absl::Status error = ErrnoStatus(number, "run/logs/attempt-0");
    const std::string trouble = HostTrouble(error.message());
    EXPECT_FALSE(trouble.empty()) << error;
    EXPECT_EQ(std::string(error.message()), "run/logs/attempt-0: " + trouble);
  }
  for (const int number : {ENOENT, ECONNRESET, ENOMEM, ETIMEDOUT, EPERM}) {
    EXPECT_EQ(HostTrouble(ErrnoStatus(number, "n1:29500").message()), "") << number;
  }
  EXPECT_EQ(HostTrouble(""), "");
}

RankEnd Ended(int rank, int exit_code, int64_t order, const std::string& error = "") {
  return {.rank = rank, .pid = 1, .exit_code = exit_code, .order = order, .error = error};
}

TEST(CauseToReport, IsTheRankWhoseHostIsInTroubleThoughItsVictimsEndedBeforeIt) {
  const std::vector<RankEnd> ends = {
      Ended(0, 75, 0), Ended(2, 75, 1, "the collective took too long"),
      Ended(1, 75, 2, "corpus.bin: Input/output error"), Ended(3, 75, 3)};
  ASSERT_NE(CauseToReport(ends, {}), nullptr);
  EXPECT_EQ(CauseToReport(ends, {})->rank, 1);
}

TEST(CauseToReport, IsTheRootCauseWhereNoHostIsInTroubleOrAnotherEndIsHarder) {
  std::vector<RankEnd> ends = {Ended(2, 75, 0), Ended(0, 75, 1, "a peer is lost")};
  EXPECT_EQ(CauseToReport(ends, {})->rank, 2);
  ends.push_back(Ended(1, 75, 2, "logs: No space left on device"));
  ends.push_back(Ended(3, 64, 3, "loss is no scalar"));
  EXPECT_EQ(CauseToReport(ends, {})->rank, 3);
  EXPECT_EQ(CauseToReport({Ended(0, 0, 0)}, {}), nullptr);
  RankEnd stopped = Ended(1, 75, 1, "logs: No space left on device");
  stopped.stopped = true;
  EXPECT_EQ(CauseToReport({Ended(0, 75, 0), stopped}, {})->rank, 0) << "the agent ended it";
}

TEST(RankInTrouble, IsTheOneThatTheErrorNamesBeforeTheTroubleOrElseItsOwn) {
  EXPECT_EQ(RankInTrouble("corpus.bin: Permission denied", 4), 4);
  EXPECT_EQ(RankInTrouble("rank 12 cannot start: corpus.bin: Permission denied", 4), 12);
  EXPECT_EQ(RankInTrouble("rank 0 cannot start: on rank 3: a.bin: Permission denied", 4), 3);
  EXPECT_EQ(RankInTrouble("rank: No space left on device; rank 2 waits", 4), 4);
  EXPECT_EQ(RankInTrouble("rank 2 is at another step", 4), 4) << "it tells of no host";
  EXPECT_EQ(RankInTrouble("rank 99999999999 cannot start: Input/output error", 4), 4);
  EXPECT_EQ(RankInTrouble("", 4), 4);
}

TEST(PlanAside, WaitsThreeTimesAsLongAfterEachFailureAndAnHourAtMost) {
  HostFailures failures;
  for (const int seconds : {10, 30, 90, 270, 810, 2430, 3600, 3600}) {
    failures = WithFailure(failures, "No space left on device", "logs: No space left on device");
    EXPECT_EQ(PlanAside(failures).wait, absl::Seconds(seconds));
    EXPECT_EQ(PlanAside(failures).leaves, failures.times >= 3);
  }
  failures.times = 1 << 30;
  EXPECT_EQ(PlanAside(failures).wait, absl::Hours(1));
}

TEST(PlanAside, CountsFailuresWhateverTheirCausesAndKeepsTheLast) {
  HostFailures failures = WithFailure({}, "No space left on device", "a");
  failures = WithFailure(failures, "No space left on device", "b");
  EXPECT_EQ(failures.times, 2);
  EXPECT_EQ(failures.error, "b") << "the last one's";
  failures = WithFailure(failures, "Read-only file system", "c");
  EXPECT_EQ(failures.times, 3);
  EXPECT_EQ(failures.error, "c");
  EXPECT_EQ(failures.cause, "Read-only file system");
  failures = WithFailure(failures, "No space left on device", std::string(4096, 'x'));
  EXPECT_EQ(failures.error.size(), 299U) << "it goes in many messages";
}

TEST(Shortened, KeepsBothEndsOfALongTextAndAShortOneWhole) {
  EXPECT_EQ(Shortened(""), "");
  const std::string longest(300, 'a');
  EXPECT_EQ(Shortened(longest), longest);
  const std::string text =
      absl::StrCat("logs/", std::string(4000, 'd'), ": No space left on device; make room");
  const std::string shortened = Shortened(text);
  EXPECT_LE(shortened.size(), 300U);
  EXPECT_TRUE(absl::StartsWith(shortened, "logs/ddd")) << shortened;
  EXPECT_TRUE(absl::EndsWith(shortened, "ddd: No space left on device; make room")) << shortened;
  EXPECT_EQ(HostTrouble(shortened), HostTrouble(text));
}

TEST(Shortened, CutsNoCharacterOfSeveralBytes) {
  for (const char* const character : {"é", "€", "😀"}) {
    for (size_t shift = 0; shift < 4; ++shift) {
      std::string text(shift, 'a');
      while (text.size() < 1000) {
        text += character;
      }
      const std::string shortened = Shortened(text);
      EXPECT_TRUE(IsUtf8(shortened)) << shortened;
      EXPECT_LE(shortened.size(), 300U);
      EXPECT_GE(shortened.size(), 290U);
    }
  }
  EXPECT_LE(Shortened(std::string(1000, '\x80')).size(), 300U) << "it is no text in UTF-8";
}

}  // namespace
}  // namespace dtrain::launcher::restart_test
