#include "launcher/nodes/elastic_job.h"

#include <csignal>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/restart.h"

namespace dtrain::launcher::elastic_job_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = ElasticAction::Kind;
constexpr int64_t kSecond = 1'000'000'000;

ElasticOptions Options(int low, int high) {
  return {.nodes_min = low,
          .nodes_max = high,
          .join_timeout = absl::Seconds(60),
          .last_call = absl::Seconds(5)};
}

// The options of a coordinator that follows another one.
ElasticOptions Successor(int low, int high) {
  ElasticOptions options = Options(low, high);
  options.restarts_max = 3;
  options.is_successor = true;  // It waits for 10 s.
  return options;
}

// A job and its time. The id of a node is its number unless it is given.
class Job {
 public:
  explicit Job(const ElasticOptions& options) : job_(options, 0) {}

  void Join(int number, int id = -1) {
    job_.Join(id < 0 ? number : id, {number, absl::StrCat("h", number), 1}, now_);
    Take();
  }
  void Adopt(int number, int id, const AttemptMemory& memory) {
    job_.Adopt(id, {number, absl::StrCat("h", number), 1}, memory, now_);
    Take();
  }
  void SetAttempt(int attempt) { attempt_ = attempt; }
  std::vector<int> world() const { return job_.world(); }
  void Lose(int id) {
    job_.Lose(id, "the connection of its agent has ended", now_);
    Take();
  }
  void Report(int id, NodeReport report) {
    report.attempt = attempt_;
    job_.Report(id, report, now_);
    Take();
  }
  void Stop(int signal) {
    job_.Stop(signal, now_);
    Take();
  }
  absl::Status Drain(int id) {
    absl::Status status = job_.Drain(id, now_);
    Take();
    return status;
  }
  void Pass(double seconds) {
    const int64_t until = now_ + static_cast<int64_t>(seconds * kSecond);
    for (; now_ < until; now_ += kSecond / 10) {
      job_.Tick(now_);
      Take();
    }
  }
  // The actions since the last call, but for those that only tell nodes that they are spares.
  std::vector<ElasticAction> Actions() { return std::exchange(actions_, {}); }
  // The only action since the last call.
  ElasticAction Only() {
    const std::vector<ElasticAction> actions = Actions();
    EXPECT_EQ(actions.size(), 1U);
    return actions.empty() ? ElasticAction{.kind = Kind::kEnd, .code = -1} : actions.front();
  }
  int parked() const { return parked_; }

 private:
  void Take() {
    for (ElasticAction& action : job_.TakeActions()) {
      attempt_ = action.kind == Kind::kStart ? action.attempt : attempt_;
      parked_ += action.kind == Kind::kPark ? 1 : 0;
      if (action.kind != Kind::kPark) {
        actions_.push_back(std::move(action));
      }
    }
  }

  ElasticJob job_;
  int64_t now_ = 0;
  int attempt_ = -1;
  int parked_ = 0;
  std::vector<ElasticAction> actions_;
};

Job Running(const ElasticOptions& options, int nodes) {
  Job job(options);
  for (int node = 0; node < nodes; ++node) {
    job.Join(node);
  }
  job.Pass(6);
  EXPECT_EQ(job.Only().kind, Kind::kStart);
  return job;
}

NodeReport Failed(int rank, int code, int signal = 0) {
  NodeReport report{.code = signal != 0 ? 128 + signal : code};
  report.cause = RankEnd{.rank = rank, .exit_code = code, .signal = signal};
  return report;
}

constexpr NodeReport kVictim{.code = 75};

TEST(ElasticJob, StartsAtOnceWithTheMaximum) {
  Job job(Options(2, 3));
  job.Join(0);
  job.Join(1);
  job.Join(2);
  const ElasticAction start = job.Only();
  EXPECT_EQ(start.kind, Kind::kStart);
  EXPECT_THAT(start.nodes, ElementsAre(0, 1, 2));
}

TEST(ElasticJob, TheMinimumWaitsForMoreUntilTheLastCallHasPassed) {
  Job job(Options(2, 4));
  job.Join(1);
  job.Join(0);
  job.Pass(4.5);
  EXPECT_THAT(job.Actions(), IsEmpty());
  job.Pass(1);
  EXPECT_THAT(job.Only().nodes, ElementsAre(0, 1)) << "node 0 is first whenever it came";
}

TEST(ElasticJob, FewerThanTheMinimumEndWithAMessageAfterTheJoinTimeout) {
  Job job(Options(2, 4));
  job.Join(0);
  job.Pass(61);
  const ElasticAction end = job.Only();
  EXPECT_EQ(end.kind, Kind::kEnd);
  EXPECT_EQ(end.code, 75);
  EXPECT_THAT(end.why, HasSubstr("1 of at least 2 nodes are there after 1m"));
}

TEST(ElasticJob, AWorldThatCannotDivideIsAUsersError) {
  ElasticOptions options = Options(2, 3);
  options.batch = {7, 1};
  Job job(options);
  job.Join(0);
  job.Join(1);
  job.Pass(61);
  const ElasticAction end = job.Only();
  EXPECT_EQ(end.code, 64);
  EXPECT_THAT(end.why, HasSubstr("train_batch_size 7 is not a multiple"));
}

TEST(ElasticJob, ASpareTakesTheLostNodesPlaceWhenTheOthersHaveEnded) {
  Job job = Running(Options(2, 3), 4);
  job.Lose(1);
  const ElasticAction stop = job.Only();
  EXPECT_EQ(stop.kind, Kind::kStop);
  EXPECT_FALSE(stop.save);
  EXPECT_EQ(stop.why, "node 1 (host h1) is lost: the connection of its agent has ended");
  job.Report(0, {.code = 75, .durable_step = 7});
  EXPECT_THAT(job.Actions(), IsEmpty()) << "node 2 still has ranks";
  job.Report(2, kVictim);
  const ElasticAction start = job.Only();
  EXPECT_THAT(start.nodes, ElementsAre(0, 2, 3));
  EXPECT_EQ(start.attempt, 1);
  EXPECT_THAT(start.why, HasSubstr("node 1 (host h1) is lost"));
}

TEST(ElasticJob, WithoutASpareItShrinksAndBelowTheMinimumItWaits) {
  Job job = Running(Options(2, 3), 3);
  job.Lose(2);
  job.Report(0, {.code = 75, .durable_step = 7});
  job.Report(1, kVictim);
  EXPECT_THAT(job.Actions().back().nodes, ElementsAre(0, 1));
  job.Lose(1);
  job.Report(0, {.code = 75, .durable_step = 8});
  job.Pass(30);
  EXPECT_EQ(job.Only().kind, Kind::kStop);
  job.Join(1, 10);
  EXPECT_THAT(job.Only().nodes, ElementsAre(0, 10));
}

TEST(ElasticJob, TheLossOfASpareChangesNothing) {
  Job job = Running(Options(2, 2), 3);
  EXPECT_EQ(job.parked(), 1) << "it is told once";
  job.Lose(2);
  job.Pass(20);
  EXPECT_THAT(job.Actions(), IsEmpty());
}

TEST(ElasticJob, ALossThatIsNotedAfterItsVictimsIsTheCauseAllTheSame) {
  Job job = Running(Options(2, 3), 3);
  job.Report(0, {.code = 75, .durable_step = 3});
  job.Report(1, kVictim);
  job.Report(2, Failed(2, 75));
  EXPECT_THAT(job.Actions(), IsEmpty()) << "the news of a loss may be on its way";
  job.Pass(2);
  EXPECT_EQ(job.Only().code, 75) << "--max-restarts is 0";

  Job other = Running(Options(2, 3), 3);
  other.Report(0, {.code = 75, .durable_step = 3});
  other.Report(1, kVictim);
  other.Lose(2);
  EXPECT_THAT(other.Actions().back().nodes, ElementsAre(0, 1));
}

TEST(ElasticJob, ARankThatFailsOnALiveNodeFollowsMaxRestarts) {
  ElasticOptions options = Options(2, 2);
  options.restarts_max = 1;
  Job job = Running(options, 2);
  job.Report(0, {.code = 75, .durable_step = 3});
  job.Report(1, Failed(1, 0, SIGSEGV));
  EXPECT_EQ(job.Only().kind, Kind::kStart) << "at once, because there is a new durable step";
  job.Report(0, {.code = 75, .durable_step = 4});
  job.Report(1, Failed(1, 0, SIGSEGV));
  EXPECT_EQ(job.Only().code, 128 + SIGSEGV);
}

TEST(ElasticJob, AUsersErrorIsNeverRestarted) {
  ElasticOptions options = Options(2, 2);
  options.restarts_max = 9;
  Job job = Running(options, 3);
  job.Report(0, Failed(0, 64));
  job.Report(1, kVictim);
  const ElasticAction end = job.Only();
  EXPECT_EQ(end.kind, Kind::kEnd);
  EXPECT_EQ(end.code, 64);
}

TEST(ElasticJob, TheSameNodeLostThreeTimesWithoutADurableStepEndsWith93) {
  Job job = Running(Options(2, 3), 3);
  for (int time = 0; time < kAttemptsWithoutProgressMax; ++time) {
    const int id = time == 0 ? 2 : 10 + time;
    job.Lose(id);
    job.Report(0, kVictim);
    job.Report(1, kVictim);
    if (time + 1 < kAttemptsWithoutProgressMax) {
      job.Join(2, 11 + time);
    }
    job.Pass(4);
  }
  const std::vector<ElasticAction> actions = job.Actions();
  ASSERT_EQ(actions.back().kind, Kind::kEnd);
  EXPECT_EQ(actions.back().code, 93);
  EXPECT_THAT(actions.back().why, HasSubstr("without a new committed checkpoint"));
}

TEST(ElasticJob, NodesThatComeLaterAreTakenInAtAStepsEnd) {
  Job job = Running(Options(2, 4), 2);
  job.Join(2);
  job.Pass(4);
  EXPECT_THAT(job.Actions(), IsEmpty()) << "more may come";
  job.Join(3);
  job.Pass(6);
  const ElasticAction stop = job.Only();
  EXPECT_TRUE(stop.save && stop.job_goes_on);
  EXPECT_EQ(stop.why, "the job grows from 2 to 4 nodes");
  job.Report(0, {.code = 143, .stop_signal = SIGTERM, .durable_step = 5});
  job.Report(1, {.code = 143, .stop_signal = SIGTERM});
  EXPECT_THAT(job.Only().nodes, ElementsAre(0, 1, 2, 3));
}

TEST(ElasticJob, ItDoesNotStopToGrowToAWorldThatDoesNotDivide) {
  ElasticOptions options = Options(2, 3);
  options.batch = {8, 1};
  Job job = Running(options, 2);
  job.Join(2);
  job.Pass(20);
  EXPECT_THAT(job.Actions(), IsEmpty());
}

TEST(ElasticJob, ADrainedNodeLeavesAtTheStepsEndAndASpareTakesItsPlace) {
  Job job = Running(Options(2, 2), 3);
  ASSERT_TRUE(job.Drain(1).ok());
  const ElasticAction stop = job.Only();
  EXPECT_TRUE(stop.save && stop.job_goes_on);
  job.Report(0, {.code = 143, .stop_signal = SIGTERM});
  job.Report(1, {.code = 143, .stop_signal = SIGTERM});
  const std::vector<ElasticAction> actions = job.Actions();
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_EQ(actions[0].kind, Kind::kDismiss);
  EXPECT_THAT(actions[0].nodes, ElementsAre(1));
  EXPECT_EQ(actions[0].code, 0);
  EXPECT_THAT(actions[1].nodes, ElementsAre(0, 2));
}

TEST(ElasticJob, ADrainThatTheJobCannotBearIsRefusedByName) {
  Job job = Running(Options(2, 2), 2);
  EXPECT_THAT(std::string(job.Drain(1).message()),
              HasSubstr("without node 1 (host h1) no number of nodes from 2 to 2 is left"));
  EXPECT_THAT(std::string(job.Drain(0).message()), HasSubstr("has the job's coordinator"));
  EXPECT_THAT(job.Actions(), IsEmpty());
}

TEST(ElasticJob, ADrainedSpareLeavesAtOnce) {
  Job job = Running(Options(2, 2), 3);
  ASSERT_TRUE(job.Drain(2).ok());
  EXPECT_EQ(job.Only().kind, Kind::kDismiss);
}

TEST(ElasticJob, SigtermToOneNodesAgentLetsThatNodeGo) {
  Job job = Running(Options(2, 3), 3);
  job.Report(0, {.code = 143, .stop_signal = SIGTERM});
  job.Report(1, {.code = 143, .stop_signal = SIGTERM});
  job.Report(2, {.code = 143, .stop_signal = SIGTERM, .stopped_here = true});
  const std::vector<ElasticAction> actions = job.Actions();
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_EQ(actions[0].code, 143);
  EXPECT_THAT(actions[0].nodes, ElementsAre(2));
  EXPECT_THAT(actions[1].nodes, ElementsAre(0, 1));
}

TEST(ElasticJob, SigtermToNodeZeroAndAnyCtrlCStopTheJob) {
  Job job = Running(Options(2, 3), 3);
  job.Report(0, {.code = 143, .stop_signal = SIGTERM, .stopped_here = true});
  job.Report(1, {.code = 143, .stop_signal = SIGTERM});
  job.Report(2, {.code = 143, .stop_signal = SIGTERM, .stopped_here = true});
  EXPECT_EQ(job.Only().code, 143);

  Job other = Running(Options(2, 3), 3);
  other.Report(0, {.code = 130, .stop_signal = SIGINT});
  other.Report(1, {.code = 130, .stop_signal = SIGINT, .stopped_here = true});
  other.Report(2, {.code = 130, .stop_signal = SIGINT});
  EXPECT_EQ(other.Only().code, 130);
}

TEST(ElasticJob, ACtrlCAtASpareStopsTheJobWithASave) {
  Job job = Running(Options(2, 2), 3);
  job.Stop(SIGINT);
  const ElasticAction stop = job.Only();
  EXPECT_TRUE(stop.save && !stop.job_goes_on);
  job.Report(0, {.code = 143, .stop_signal = SIGTERM});
  job.Report(1, {.code = 143, .stop_signal = SIGTERM});
  EXPECT_EQ(job.Only().code, 130);
}

TEST(ElasticJob, NumbersAreForOneNodeEach) {
  Job job = Running(Options(2, 3), 3);
  job.Join(1, 9);
  const ElasticAction refused = job.Only();
  EXPECT_EQ(refused.kind, Kind::kDismiss);
  EXPECT_THAT(refused.nodes, ElementsAre(9));
  EXPECT_EQ(refused.code, 64);
  EXPECT_THAT(refused.why, HasSubstr("is node 1 already; give each node its own --node-rank"));
}

TEST(ElasticJob, ANodeThatNeverReportsIsGivenUp) {
  Job job = Running(Options(2, 3), 3);
  job.Report(0, {.code = 70, .durable_step = 1});
  job.Report(1, kVictim);
  job.Pass(11);
  EXPECT_EQ(job.Only().kind, Kind::kStop);
  job.Pass(11);
  const std::vector<ElasticAction> actions = job.Actions();
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_THAT(actions[0].nodes, ElementsAre(2));
  EXPECT_EQ(actions[0].code, 75);
  EXPECT_THAT(actions[1].nodes, ElementsAre(0, 1));
}

TEST(ElasticJob, TheNodesOfTheAttemptThatFollowASilentOneAreNotGivenUpWithIt) {
  Job job = Running(Options(2, 3), 3);
  job.Report(0, {.code = 70, .durable_step = 1});
  job.Report(2, kVictim);
  job.Pass(11);
  EXPECT_EQ(job.Only().kind, Kind::kStop);
  job.Pass(11);
  const std::vector<ElasticAction> actions = job.Actions();
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_EQ(actions[0].kind, Kind::kDismiss);
  EXPECT_THAT(actions[0].nodes, ElementsAre(1));
  EXPECT_EQ(actions[1].kind, Kind::kStart);
  EXPECT_THAT(actions[1].nodes, ElementsAre(0, 2));
}

TEST(ElasticJob, ANodeThatCannotStartItsRanksEndsTheJobWithItsCode) {
  Job job = Running(Options(2, 3), 3);
  job.Report(2, {.code = 64});
  job.Pass(11);
  EXPECT_FALSE(job.Only().save);
  job.Report(0, kVictim);
  job.Report(1, kVictim);
  EXPECT_EQ(job.Only().code, 64);
}

TEST(ElasticJob, TheEndOfAllRanksEndsTheJob) {
  Job job = Running(Options(2, 3), 4);
  for (const int node : {0, 1, 2}) {
    job.Report(node, {.code = 0});
  }
  EXPECT_EQ(job.Only().code, 0);
  job.Join(7);
  EXPECT_EQ(job.Only().kind, Kind::kDismiss) << "it comes too late";
}

AttemptMemory MemoryOf(int attempt, const std::vector<int>& numbers) {
  AttemptMemory memory{.attempt = attempt};
  for (const int number : numbers) {
    memory.nodes.push_back({number, absl::StrCat("h", number), 1});
  }
  return memory;
}

TEST(ElasticJob, ASuccessorAdoptsTheAttemptAndStopsNobody) {
  Job job(Successor(2, 3));
  job.Adopt(1, 10, MemoryOf(4, {0, 1}));
  job.Adopt(0, 11, MemoryOf(4, {0, 1}));
  job.Adopt(7, 12, MemoryOf(4, {0, 1}));  // A spare.
  job.Pass(4);
  EXPECT_THAT(job.Actions(), IsEmpty());
  EXPECT_EQ(job.parked(), 1);
  EXPECT_THAT(job.world(), ElementsAre(11, 10)) << "by node rank";
  job.SetAttempt(4);
  job.Report(11, {.code = 0});
  job.Report(10, {.code = 0});
  EXPECT_EQ(job.Only().code, 0);
}

TEST(ElasticJob, ANodeThatDoesNotComeBackIsLostWhenTheTimeHasPassed) {
  Job job(Successor(1, 2));
  job.Adopt(0, 5, MemoryOf(4, {0, 1}));
  job.Pass(9.5);
  EXPECT_THAT(job.Actions(), IsEmpty());
  job.Pass(1);
  const ElasticAction stop = job.Only();
  EXPECT_EQ(stop.kind, Kind::kStop);
  EXPECT_EQ(stop.attempt, 4);
  EXPECT_THAT(stop.why, HasSubstr("node 1 (host h1) is lost: its agent has not come back"));
  job.SetAttempt(4);
  job.Report(5, kVictim);
  job.Pass(2);
  const ElasticAction start = job.Only();
  EXPECT_EQ(start.attempt, 5);
  EXPECT_THAT(start.nodes, ElementsAre(5));
}

TEST(ElasticJob, ANewAgentOfNodeZeroEndsTheAdoptedAttemptAndTheNextOneHasANewNumber) {
  Job job(Successor(2, 2));
  job.Join(0);
  job.Adopt(1, 9, MemoryOf(4, {0, 1}));
  const ElasticAction stop = job.Only();
  EXPECT_EQ(stop.kind, Kind::kStop);
  EXPECT_THAT(stop.why, HasSubstr("node 0 (host h0) came back without its ranks"));
  job.SetAttempt(4);
  job.Report(9, kVictim);
  job.Pass(2);
  const ElasticAction start = job.Only();
  EXPECT_EQ(start.attempt, 5);
  EXPECT_THAT(start.nodes, ElementsAre(0, 9));
}

TEST(ElasticJob, TheNewestAttemptThatAnAgentKnowsCounts) {
  Job job(Successor(2, 2));
  AttemptMemory old = MemoryOf(4, {0, 1});
  old.report = NodeReport{.attempt = 4, .code = 75};
  job.Adopt(0, 5, old);
  job.Adopt(1, 6, MemoryOf(5, {0, 1}));
  const ElasticAction stop = job.Only();
  EXPECT_EQ(stop.attempt, 5) << "node 0 never began it";
}

TEST(ElasticJob, WhoComesAfterTheSuccessorHasBegunAnAttemptIsGivenUp) {
  Job job(Successor(1, 1));
  job.Join(0);
  job.Pass(9.5);
  EXPECT_THAT(job.Actions(), IsEmpty()) << "it waits for those who may still train";
  job.Pass(1);
  EXPECT_EQ(job.Only().kind, Kind::kStart);
  job.Adopt(1, 9, MemoryOf(4, {1}));
  EXPECT_EQ(job.Only().kind, Kind::kDismiss);
  job.Report(0, Failed(0, 0, SIGKILL));
  job.Pass(2);
  EXPECT_EQ(job.Only().attempt, 5) << "no number is used twice";
}

TEST(ElasticJob, ASuccessorKnowsTheRestartsThatAreUsed) {
  ElasticOptions options = Successor(1, 1);
  options.restarts_max = 2;
  Job job(options);
  AttemptMemory memory = MemoryOf(4, {0});
  memory.failures.restarts_used = 2;
  memory.report = Failed(0, 0, SIGKILL);
  memory.report->attempt = 4;
  job.Adopt(0, 5, memory);
  job.Pass(2);
  EXPECT_THAT(job.Only().why, HasSubstr("all 2 restarts of --max-restarts are used"));
}

}  // namespace
}  // namespace dtrain::launcher::elastic_job_test
