#include "launcher/ranks/rank_end.h"

#include <csignal>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/nodes/peers.h"

namespace dtrain::launcher::rank_end_test {
namespace {

RankEnd Exited(int rank, int code, int64_t order) {
  RankEnd end;
  end.rank = rank;
  end.exit_code = code;
  end.order = order;
  return end;
}

RankEnd Killed(int rank, int signal, int64_t order) {
  RankEnd end = Exited(rank, 0, order);
  end.signal = signal;
  return end;
}

RankEnd Stopped(RankEnd end) {
  end.stopped = true;
  return end;
}

TEST(StopSignal, ASecondOneOfThisAgentForcesTheEnd) {
  StopRequest stop;
  EXPECT_EQ(NoteStopSignal(SIGTERM, /*from_peer=*/false, false, stop), StopEffect::kStop);
  EXPECT_EQ(NoteStopSignal(SIGTERM, /*from_peer=*/true, false, stop), StopEffect::kNone);
  EXPECT_EQ(NoteStopSignal(SIGINT, /*from_peer=*/false, false, stop), StopEffect::kForce);
  EXPECT_EQ(stop.signal, SIGTERM);
  EXPECT_TRUE(stop.interrupted);
}

TEST(StopSignal, TheFirstOfThisAgentBehindAnotherAgentsForcesNothing) {
  StopRequest stop;
  EXPECT_EQ(NoteStopSignal(SIGTERM, /*from_peer=*/true, false, stop), StopEffect::kStop);
  EXPECT_FALSE(stop.here);
  EXPECT_EQ(NoteStopSignal(SIGTERM, /*from_peer=*/false, false, stop), StopEffect::kNone);
  EXPECT_TRUE(stop.here);
  EXPECT_EQ(NoteStopSignal(SIGTERM, /*from_peer=*/false, false, stop), StopEffect::kForce);
}

TEST(StopSignal, AWarningAheadOfATimeLimitCountsForNone) {
  StopRequest stop;
  EXPECT_EQ(NoteStopSignal(SIGUSR1, /*from_peer=*/false, false, stop), StopEffect::kStop);
  EXPECT_EQ(NoteStopSignal(SIGUSR1, /*from_peer=*/false, false, stop), StopEffect::kNone);
  EXPECT_EQ(NoteStopSignal(SIGTERM, /*from_peer=*/false, false, stop), StopEffect::kNone);
  EXPECT_EQ(NoteStopSignal(SIGTERM, /*from_peer=*/false, false, stop), StopEffect::kForce);
}

TEST(StopSignal, TheJobGoesOnIfAllWereForAChangeOfNodes) {
  StopRequest stop;
  NoteStopSignal(SIGTERM, /*from_peer=*/true, /*job_goes_on=*/true, stop);
  EXPECT_TRUE(stop.job_goes_on);
  NoteStopSignal(SIGTERM, /*from_peer=*/false, /*job_goes_on=*/false, stop);
  EXPECT_FALSE(stop.job_goes_on);
  NoteStopSignal(SIGTERM, /*from_peer=*/true, /*job_goes_on=*/true, stop);
  EXPECT_FALSE(stop.job_goes_on);
}

TEST(RootCause, IsTheFirstFailure) {
  const std::vector<RankEnd> ends = {Exited(2, 17, 1), Exited(0, 3, 0), Exited(1, 0, 2)};
  ASSERT_NE(RootCause(ends), nullptr);
  EXPECT_EQ(RootCause(ends)->rank, 0);
  EXPECT_EQ(JobExitCode(ends, {}), 3);
}

TEST(RootCause, IsTheKilledRankAndNotItsVictims) {
  const std::vector<RankEnd> ends = {Exited(0, 75, 0), Exited(2, 75, 1), Killed(1, SIGKILL, 2)};
  EXPECT_EQ(RootCause(ends)->rank, 1);
  EXPECT_EQ(JobExitCode(ends, {}), 137);
}

TEST(RootCause, IsNeverARankThatTheAgentStopped) {
  const std::vector<RankEnd> ends = {Stopped(Killed(0, SIGTERM, 0)), Exited(1, 64, 1),
                                     Stopped(Killed(2, SIGKILL, 2))};
  EXPECT_EQ(RootCause(ends)->rank, 1);
  EXPECT_EQ(JobExitCode(ends, {}), 64);
  EXPECT_EQ(RootCause({Stopped(Exited(0, 1, 0))}), nullptr);
}

TEST(RootCause, IsTheRankThatHangsAndNoneThatLostAPeerBeforeIt) {
  RankEnd hang = Exited(1, 75, 1);
  hang.hang = "never_entered";
  hang.error = "rank 1 has not entered collective 3";
  const std::vector<RankEnd> ends = {Exited(0, 75, 0), hang, Stopped(Killed(1, SIGKILL, 2))};
  ASSERT_NE(RootCause(ends), nullptr);
  EXPECT_EQ(RootCause(ends)->hang, "never_entered");
  EXPECT_FALSE(MayBeVictim(hang));
  EXPECT_EQ(JobExitCode(ends, {}), 75);
  EXPECT_EQ(DescribeFailure(hang), "the job hangs: rank 1 has not entered collective 3");
  const auto read = DecodeEnd(EncodeEnd(hang));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->hang, hang.hang);
  EXPECT_EQ(read->error, hang.error);
}

TEST(RootCause, AfterAStopRequestIsOnlyWhatTheStopDoesNotExplain) {
  StopRequest stop;
  stop.signal = SIGTERM;
  EXPECT_EQ(RootCause({Exited(0, 143, 0), Killed(1, SIGTERM, 1)}, stop), nullptr);
  EXPECT_EQ(RootCause({Exited(0, 143, 0), Exited(1, 70, 1)}, stop)->rank, 1);
}

TEST(EarlyLeaver, IsTheRankThatEndedWithZeroBeforeAVictim) {
  const std::vector<RankEnd> ends = {Exited(1, 0, 0), Exited(0, 75, 1)};
  ASSERT_NE(EarlyLeaver(ends, ends[1]), nullptr);
  EXPECT_EQ(EarlyLeaver(ends, ends[1])->rank, 1);
  const std::vector<RankEnd> hard = {Exited(1, 0, 0), Killed(0, SIGSEGV, 1)};
  EXPECT_EQ(EarlyLeaver(hard, hard[1]), nullptr);
}

TEST(EarlyLeaver, IsTheFirstOfThemAndNoRankThatWasStoppedOrLeftLater) {
  std::vector<RankEnd> ends = {Exited(2, 0, 3), Exited(1, 0, 1), Exited(0, 75, 4), Exited(3, 0, 5)};
  EXPECT_EQ(EarlyLeaver(ends, ends[2])->rank, 1);
  ends = {Stopped(Exited(1, 0, 0)), Exited(0, 75, 1), Exited(2, 0, 2)};
  EXPECT_EQ(EarlyLeaver(ends, ends[1]), nullptr);
}

TEST(JobExitCode, IsTheLargestThatTheStopExplains) {
  StopRequest stop;
  stop.signal = SIGTERM;
  EXPECT_EQ(JobExitCode({Exited(0, 0, 0), Exited(1, 143, 1)}, stop), 143);
  EXPECT_EQ(JobExitCode({Exited(0, 143, 0), Exited(1, 0, 1)}, stop), 143);
  EXPECT_EQ(JobExitCode({Stopped(Killed(0, SIGKILL, 0)), Exited(1, 130, 1)}, stop), 130)
      << "137 is the agent's own doing";
  StopRequest interrupted;
  interrupted.signal = SIGINT;
  interrupted.interrupted = true;
  EXPECT_EQ(JobExitCode({Exited(0, 0, 0)}, interrupted), 0) << "it was done by then";
}

TEST(JobExitCode, IsZeroWhenAllRanksAreDone) {
  EXPECT_EQ(JobExitCode({Exited(0, 0, 0), Exited(1, 0, 1)}, {}), 0);
}

TEST(JobExitCode, AfterStopSignalsFollowsTheTable) {
  StopRequest terminated;
  terminated.signal = SIGTERM;
  EXPECT_EQ(JobExitCode({Exited(0, 143, 0), Exited(1, 143, 1)}, terminated), 143);
  EXPECT_EQ(JobExitCode({Exited(0, 75, 0), Exited(1, 143, 1)}, terminated), 75);
  EXPECT_EQ(JobExitCode({Exited(0, 0, 0), Exited(1, 0, 1)}, terminated), 0);
  StopRequest interrupted;
  interrupted.signal = SIGINT;
  interrupted.interrupted = true;
  EXPECT_EQ(JobExitCode({Exited(0, 130, 0), Exited(1, 143, 1)}, interrupted), 130);
  interrupted.forced = true;
  EXPECT_EQ(JobExitCode({Stopped(Killed(0, SIGKILL, 0))}, interrupted), 130);
  terminated.forced = true;  // Killed before a save was committed.
  EXPECT_EQ(JobExitCode({Stopped(Killed(0, SIGKILL, 0))}, terminated), 75);
}

TEST(DescribeFailure, NamesRankSignalPidHostAndStep) {
  RankEnd end = Killed(3, SIGKILL, 0);
  end.pid = 4242;
  end.host = "n1";
  end.step = 120;
  end.phase = "backward";
  EXPECT_EQ(DescribeFailure(end),
            "rank 3 killed by signal 9 (SIGKILL), pid 4242 on host n1, after step 120 (backward)");
  EXPECT_THAT(DescribeEnd(Exited(0, 64, 0)), ::testing::HasSubstr("exit code 64 (wrong usage"));
  EXPECT_EQ(DescribeEnd(Exited(0, 17, 0)), "ended with exit code 17");
}

TEST(Order, SurvivesItsWayThroughTheStore) {
  Order order;
  order.kind = Order::Kind::kFail;
  order.node = 2;
  order.end = Killed(5, SIGSEGV, 7);
  order.end.error = "quote \" and line\nend";
  order.end.step = 9;
  const absl::StatusOr<Order> back = Order::Parse(order.Encode());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->kind, Order::Kind::kFail);
  EXPECT_EQ(back->node, 2);
  EXPECT_EQ(back->end.rank, 5);
  EXPECT_EQ(back->end.signal, SIGSEGV);
  EXPECT_EQ(back->end.error, order.end.error);
  EXPECT_EQ(back->end.step, 9);
}

TEST(Order, KeepsEveryFieldOfAnEnd) {
  Order order;
  order.kind = Order::Kind::kFail;
  order.end = Exited(5, 70, 7);
  order.end.node = 3;
  order.end.host = "n3";
  order.end.pid = 4242;
  order.end.phase = "forward";
  order.end.log = "/runs/a/logs/rank-5.log";
  const absl::StatusOr<Order> back = Order::Parse(order.Encode());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->end.rank, 5);
  EXPECT_EQ(back->end.node, 3);
  EXPECT_EQ(back->end.host, "n3");
  EXPECT_EQ(back->end.pid, 4242);
  EXPECT_EQ(back->end.exit_code, 70);
  EXPECT_EQ(back->end.signal, 0);
  EXPECT_EQ(back->end.phase, "forward");
  EXPECT_EQ(back->end.log, "/runs/a/logs/rank-5.log");
}

TEST(Order, KeepsTheDurableStepWithTheEndOfANode) {
  Order ended;
  ended.durable_step = int64_t{1} << 40;
  const absl::StatusOr<Order> back = Order::Parse(ended.Encode());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->kind, Order::Kind::kEnded);
  EXPECT_EQ(back->durable_step, ended.durable_step);
}

TEST(Order, KeepsTheNameOfAQuestion) {
  Order question;
  question.kind = Order::Kind::kAsk;
  question.node = -1;
  question.answers = "answers/7";
  const absl::StatusOr<Order> back = Order::Parse(question.Encode());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->kind, Order::Kind::kAsk);
  EXPECT_EQ(back->node, -1);
  EXPECT_EQ(back->answers, "answers/7");
  EXPECT_FALSE(Order::Parse(R"({"kind": "ask", "node": 1, "signal": 0, "end": "{}"})").ok());
}

TEST(SignalName, IsTheManualsOrTheNumber) {
  for (const auto& [signal, name] :
       {std::pair(SIGHUP, "SIGHUP"), std::pair(SIGQUIT, "SIGQUIT"), std::pair(SIGTRAP, "SIGTRAP"),
        std::pair(SIGUSR1, "SIGUSR1"), std::pair(SIGUSR2, "SIGUSR2"), std::pair(SIGXCPU, "SIGXCPU"),
        std::pair(SIGXFSZ, "SIGXFSZ"), std::pair(SIGSYS, "SIGSYS"), std::pair(40, "signal 40")}) {
    EXPECT_EQ(SignalName(signal), name);
  }
}

TEST(DescribeFailure, LeavesOutWhatIsNotKnown) {
  RankEnd end = Exited(1, 17, 0);
  end.pid = 7;
  end.host = "a";
  end.step = -1;
  EXPECT_EQ(DescribeFailure(end), "rank 1 ended with exit code 17, pid 7 on host a");
  end.step = 0;
  EXPECT_EQ(DescribeFailure(end), "rank 1 ended with exit code 17, pid 7 on host a, after step 0");
  EXPECT_EQ(DescribeFailure({.rank = 1, .host = "a", .exit_code = 75}),
            "rank 1 cannot be started on host a");
}

// Only lines that the error touches are removed, and not the line before or after.
TEST(LinesWithout, KeepsTheNeighbours) {
  const std::vector<std::string> log = {"ab", "cd", "ef"};
  EXPECT_EQ(LinesWithout(log, "cd"), (std::vector<std::string>{"ab", "ef"}));
  EXPECT_EQ(LinesWithout(log, "ab"), (std::vector<std::string>{"cd", "ef"}));
  EXPECT_EQ(LinesWithout(log, "ef"), (std::vector<std::string>{"ab", "cd"}));
  EXPECT_EQ(LinesWithout(log, "b?c"), (std::vector<std::string>{"ef"}));
}

TEST(LinesWithout, LeavesOutWhatARankSaidOfItsEnd) {
  const std::vector<std::string> log = {"[W 12:00:01.000 rank 1] slow disk",
                                        "[E 12:00:02.000 rank 1] run.json:2: no comma", "Aborted"};
  EXPECT_EQ(LinesWithout(log, "run.json:2: no comma"),
            (std::vector<std::string>{log.front(), log.back()}));
  EXPECT_EQ(LinesWithout(log, "another rank was lost"), log);
  EXPECT_EQ(LinesWithout(log, ""), log);
  EXPECT_TRUE(LinesWithout({}, "run.json").empty());
}

// The agent holds the error with '?' for line ends.
TEST(LinesWithout, FindsWordsOfSeveralLines) {
  const std::vector<std::string> log = {"before", "[E 12:00:02.000] no room:", "  needs 3 GB",
                                        "  has 2 GB", "after"};
  EXPECT_EQ(LinesWithout(log, "no room:?  needs 3 GB?  has 2 GB"),
            (std::vector<std::string>{"before", "after"}));
}

TEST(Order, RefusesWhatIsNoOrder) {
  const std::string good = Order().Encode();
  for (const std::string& text : {std::string(), std::string("{}"), std::string("[1]"),
                                  good.substr(0, good.size() / 2), std::string("{\"kind\":7}")}) {
    EXPECT_FALSE(Order::Parse(text).ok()) << text;
  }
}

}  // namespace
}  // namespace dtrain::launcher::rank_end_test
