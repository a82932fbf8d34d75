// A node whose own host fails, such as one with a full disk, costs the others a few attempts and
// not one after the other: it is set aside for longer each time, and then stays out.
#include <csignal>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/nodes/elastic_job.h"

namespace dtrain::launcher::set_aside_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = ElasticAction::Kind;
constexpr int64_t kSecond = 1'000'000'000;
constexpr char kNoSpace[] = "run/logs/attempt-3: No space left on device";

ElasticOptions Options(int low, int high) {
  return {.nodes_min = low,
          .nodes_max = high,
          .join_timeout = absl::Seconds(60),
          .last_call = absl::Seconds(2)};
}

// Nodes that do what the job says. The id of an agent is the number of its node, but for those that
// are started again.
class Cluster {
 public:
  // The disks of the hosts of `full` are full. Nobody has joined a successor yet.
  explicit Cluster(const ElasticOptions& options, std::set<int> full = {})
      : job_(options, 0), full_(std::move(full)) {
    for (int number = 0; number < options.nodes_max && !options.is_successor; ++number) {
      Join(number, number);
    }
  }

  ElasticJob& job() { return job_; }
  void Join(int id, int number) { Join(id, number, absl::StrCat("h", number)); }
  void Join(int id, int number, const std::string& host) {
    job_.Join(id, {number, host, 1}, now_);
    Obey();
  }
  void Lose(int id) {
    running_.erase(id);
    job_.Lose(id, "its host is gone", now_);
    Obey();
  }
  void Pass(double seconds) {
    const int64_t until = now_ + static_cast<int64_t>(seconds * kSecond);
    for (; now_ < until; now_ += kSecond / 10) {
      job_.Tick(now_);
      Obey();
    }
  }
  // The node's rank ends, and the others lose it. `error` is what it said.
  void Fail(int id, int code, const std::string& error) {
    const std::vector<int> world = job_.world();
    NodeReport report{.code = code};
    report.cause = RankEnd{.exit_code = code, .error = error};
    for (size_t place = 0; place < world.size(); ++place) {
      report.cause->node = world[place] == id ? static_cast<int>(place) : report.cause->node;
    }
    report.cause->rank = report.cause->node;
    Report(id, report);
    for (const int other : world) {
      if (running_.count(other) > 0) {
        Report(other, {.code = 75, .cause = RankEnd{.exit_code = 75, .error = "lost a peer"}});
      }
    }
    Obey();
  }
  // Node 0 has seen a new durable step by the attempt's end.
  void MakeProgress() { ++durable_; }

  std::vector<std::vector<int>> starts;  // The worlds of the attempts.
  std::map<int, std::string> parked;     // By agents: what they were last told.
  std::vector<ElasticAction> ends;       // kDismiss and kEnd.
  std::string why;                       // Of the last start.
  FailureCounts kept;                    // Likewise.
  std::string unsaved;                   // The message of all ranks where the save at a stop fails.

 private:
  void Report(int id, NodeReport report) {
    report.attempt = job_.attempt();
    report.durable_step = id == 0 ? durable_ : -1;
    running_.erase(id);
    job_.Report(id, report, now_);
  }
  NodeReport AfterStop(int id) const {
    NodeReport report{.code = 143, .stop_signal = SIGTERM};
    if (!unsaved.empty()) {
      report.code = 75;
      report.cause = RankEnd{.rank = id, .node = id, .exit_code = 75, .error = unsaved};
    }
    return report;
  }
  void Obey() {
    for (std::vector<ElasticAction> actions = job_.TakeActions(); !actions.empty();
         actions = job_.TakeActions()) {
      for (const ElasticAction& action : actions) {
        Obey(action);
      }
    }
  }
  void Obey(const ElasticAction& action) {
    switch (action.kind) {
      case Kind::kStart:
        starts.push_back(action.nodes);
        why = action.why;
        kept = action.failures;
        running_ = {action.nodes.begin(), action.nodes.end()};
        for (const int id : action.nodes) {
          if (full_.count(id) > 0) {
            Report(id, {.code = 75, .cannot_start = true, .why = kNoSpace});
          }
        }
        return;
      case Kind::kStop:
        for (const int id : std::set<int>(running_)) {
          Report(id, action.save ? AfterStop(id) : NodeReport{.code = 75});
        }
        return;
      case Kind::kPark:
        parked[action.nodes.front()] = action.why;
        return;
      case Kind::kDismiss:
      case Kind::kEnd:
        ends.push_back(action);
        return;
    }
  }

  ElasticJob job_;
  int64_t now_ = 0;
  int64_t durable_ = 0;
  const std::set<int> full_;
  std::set<int> running_;
};

TEST(SetAside, ANodeThatCannotStartItsRanksWaitsAndTheOthersGoOn) {
  Cluster cluster(Options(1, 3), {2});
  EXPECT_THAT(cluster.starts, ElementsAre(ElementsAre(0, 1, 2), ElementsAre(0, 1)));
  EXPECT_EQ(cluster.why, absl::StrCat("node 2 (host h2) is set aside: ", kNoSpace,
                                      "; the job goes on without it"));
  EXPECT_EQ(cluster.parked[2], absl::StrCat("node 2 (host h2) is set aside for 10s: ", kNoSpace));
  EXPECT_THAT(cluster.ends, IsEmpty());
}

TEST(SetAside, AFullDiskCostsAnHourOfTrainingThreeAttemptsAndTheNodeLeavesInOneLine) {
  Cluster cluster(Options(1, 3), {2});
  for (int i = 0; i < 360; ++i) {
    cluster.MakeProgress();  // The others train on.
    cluster.Pass(10);
  }
  ASSERT_THAT(cluster.starts, SizeIs(6)) << "with it and without it, three times";
  for (size_t i = 0; i < cluster.starts.size(); i += 2) {
    EXPECT_THAT(cluster.starts[i], ElementsAre(0, 1, 2));
    EXPECT_THAT(cluster.starts[i + 1], ElementsAre(0, 1));
  }
  ASSERT_THAT(cluster.ends, SizeIs(1));
  EXPECT_EQ(cluster.ends[0].kind, Kind::kDismiss);
  EXPECT_EQ(cluster.ends[0].code, 93);
  EXPECT_THAT(cluster.ends[0].nodes, ElementsAre(2));
  EXPECT_EQ(cluster.ends[0].why,
            absl::StrCat("node 2 (host h2) stays out of the job after 3 failures without a new "
                         "durable step on it, the last: ",
                         kNoSpace,
                         "; mend that and start `dtrain launch` there again, which --hostfile does "
                         "by itself"));
}

TEST(SetAside, ARankThatFailsByItsHostUsesNoneOfMaxRestarts) {
  Cluster cluster(Options(1, 2));
  cluster.Fail(1, 75, "cannot write checkpoints/step-9: Disk quota exceeded");
  cluster.Pass(2);
  EXPECT_THAT(cluster.ends, IsEmpty());
  EXPECT_THAT(cluster.starts, ElementsAre(ElementsAre(0, 1), ElementsAre(0)));
  cluster.Pass(11);
  EXPECT_THAT(cluster.starts.back(), ElementsAre(0, 1)) << "ten seconds later";
}

TEST(SetAside, ADurableStepOnTheNodeForgivesItsFailures) {
  Cluster cluster(Options(1, 2));
  for (int i = 0; i < 6; ++i) {
    cluster.MakeProgress();
    cluster.Fail(1, 75, kNoSpace);
    cluster.Pass(14);
    ASSERT_THAT(cluster.starts.back(), ElementsAre(0, 1)) << i;
  }
  EXPECT_THAT(cluster.ends, IsEmpty());
}

TEST(SetAside, ANodeThatAlternatesBetweenTwoCausesLeavesAllTheSame) {
  Cluster cluster(Options(1, 2));
  for (const char* const error : {kNoSpace, "logs: Read-only file system"}) {
    cluster.Fail(1, 75, error);
    cluster.Pass(33);
    ASSERT_THAT(cluster.starts.back(), ElementsAre(0, 1)) << error;
    EXPECT_THAT(cluster.ends, IsEmpty());
  }
  cluster.Fail(1, 75, "corpus.bin: Input/output error");
  cluster.Pass(2);
  ASSERT_THAT(cluster.ends, SizeIs(1));
  EXPECT_EQ(cluster.ends[0].kind, Kind::kDismiss);
  EXPECT_THAT(cluster.ends[0].why, HasSubstr("after 3 failures without a new durable step on it, "
                                             "the last: corpus.bin: Input/output error; mend"));
}

TEST(SetAside, ALongErrorGoesInNoMessageWhole) {
  const std::string error = absl::StrCat(std::string(4096, 'd'), ": No space left on device");
  Cluster cluster(Options(1, 2));
  cluster.Fail(1, 75, error);
  cluster.Pass(2);
  EXPECT_THAT(cluster.why, HasSubstr(": No space left on device; the job goes on without it"));
  EXPECT_LT(cluster.why.size(), 400U);
  EXPECT_THAT(cluster.parked[1], HasSubstr("No space left on device"));
  EXPECT_LT(cluster.parked[1].size(), 400U);
  EXPECT_LE(cluster.kept.hosts[1].error.size(), 300U) << "which each agent keeps";
}

TEST(SetAside, AJobThatCannotDoWithoutTheNodeFollowsTheRestartRules) {
  Cluster cluster(Options(2, 2));
  cluster.Fail(1, 75, kNoSpace);
  cluster.Pass(2);
  ASSERT_THAT(cluster.ends, SizeIs(1));
  EXPECT_EQ(cluster.ends[0].kind, Kind::kEnd);
  EXPECT_EQ(cluster.ends[0].code, 75);
}

TEST(SetAside, WhatNodeZeroLacksTooIsNoFaultOfAnotherHost) {
  Cluster cluster(Options(1, 3), {0, 2});
  cluster.Pass(2);
  ASSERT_THAT(cluster.ends, SizeIs(1));
  EXPECT_EQ(cluster.ends[0].kind, Kind::kEnd) << "a disk that all have is full";
  EXPECT_EQ(cluster.ends[0].code, 75);
  EXPECT_THAT(cluster.parked, IsEmpty());
}

TEST(SetAside, ANodeThatCannotStartItsRanksAndIsLostBehindThatIsALostNode) {
  ElasticJob job(Options(1, 3), 0);
  for (int number = 0; number < 3; ++number) {
    job.Join(number, {number, absl::StrCat("h", number), 1}, 0);
  }
  job.Report(2, {.attempt = 0, .code = 75, .cannot_start = true, .why = kNoSpace}, 0);
  job.Lose(2, "the connection of its agent has ended", 0);
  job.TakeActions();
  job.Report(0, {.attempt = 0, .code = 75}, 0);
  job.Report(1, {.attempt = 0, .code = 75}, 0);
  job.Tick(2 * kSecond);
  const std::vector<ElasticAction> actions = job.TakeActions();
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(actions[0].kind, Kind::kStart);
  EXPECT_THAT(actions[0].nodes, ElementsAre(0, 1));
}

TEST(SetAside, AnErrorOfTheProgramEndsTheJobThoughItsTextIsLong) {
  Cluster cluster(Options(1, 2));
  cluster.Fail(1, 64, "train_batch_size is 7; allowed: a multiple of 2");
  ASSERT_THAT(cluster.ends, SizeIs(1));
  EXPECT_EQ(cluster.ends[0].code, 64);
}

TEST(SetAside, AnAgentThatIsStartedAgainWaitsForTheRestOfTheTime) {
  Cluster cluster(Options(1, 2));
  for (int i = 0; i < 3; ++i) {
    cluster.Fail(1, 75, kNoSpace);
    cluster.Pass(i < 2 ? 33 : 30);
  }
  ASSERT_THAT(cluster.ends, SizeIs(1)) << "it has left";
  cluster.Join(9, 1);
  EXPECT_THAT(cluster.parked[9], HasSubstr("node 1 (host h1) is set aside for 1m"));
  const auto standings = cluster.job().Standings();
  ASSERT_THAT(standings, SizeIs(2));
  EXPECT_EQ(standings[1].aside, kNoSpace);
  cluster.Pass(55);
  EXPECT_THAT(cluster.starts.back(), ElementsAre(0));
  cluster.Pass(10);
  EXPECT_THAT(cluster.starts.back(), ElementsAre(0, 9)) << "somebody may have mended it";
  cluster.MakeProgress();
  cluster.Fail(9, 75, kNoSpace);
  cluster.Pass(14);
  EXPECT_THAT(cluster.starts.back(), ElementsAre(0, 9)) << "the durable step has forgiven all";
}

TEST(SetAside, ASuccessorOfTheCoordinatorKeepsTheNodeAside) {
  ElasticOptions options = Options(1, 2);
  options.is_successor = true;
  Cluster cluster(options);
  AttemptMemory memory{.attempt = 4, .nodes = {{0, "h0", 1}}};
  memory.failures.hosts[1] = {
      .cause = "No space left on device", .error = kNoSpace, .times = 2, .host = "h1"};
  cluster.job().Adopt(0, {0, "h0", 1}, memory, 0);
  cluster.Join(1, 1);
  EXPECT_EQ(cluster.parked[1], absl::StrCat("node 1 (host h1) is set aside for 30s: ", kNoSpace));
  cluster.Pass(25);
  EXPECT_THAT(cluster.starts, IsEmpty());
  EXPECT_THAT(cluster.job().world(), ElementsAre(0));
  EXPECT_THAT(cluster.ends, IsEmpty());
}

TEST(SetAside, AHostThatCannotSaveAtAPlannedStopIsSetAside) {
  Cluster cluster(Options(1, 4));
  cluster.unsaved =
      "stopped by SIGTERM after step 7, but that step could not be saved: save of step 7: rank 2: "
      "state/rank-2: No space left on device";
  ASSERT_TRUE(cluster.job().Drain(3, 0).ok());
  cluster.Pass(3);
  EXPECT_THAT(cluster.starts.back(), ElementsAre(0, 1));
  EXPECT_THAT(cluster.parked[2], HasSubstr("node 2 (host h2) is set aside for 10s"));
}

TEST(SetAside, TheNodeIsThatOfTheRankThatTheOthersName) {
  Cluster cluster(Options(1, 4));
  cluster.Fail(1, 64, "rank 2 cannot start: cannot open corpus.bin: Permission denied");
  EXPECT_THAT(cluster.starts.back(), ElementsAre(0, 1, 3)) << "rank 1 was the first to end";
  EXPECT_THAT(cluster.ends, IsEmpty());
}

// The user's own mistake does not cost as many attempts as the job has nodes.
TEST(SetAside, WhatRanksOfOneHostAfterTheOtherMeetIsNoFaultOfTheirHosts) {
  constexpr char kRefused[] = "cannot open /shared/corpus.bin: Permission denied";
  Cluster cluster(Options(1, 9));
  cluster.Fail(5, 64, kRefused);
  cluster.Fail(2, 64, kRefused);
  EXPECT_THAT(cluster.ends, IsEmpty());
  cluster.Fail(7, 64, kRefused);
  ASSERT_THAT(cluster.ends, SizeIs(1));
  EXPECT_EQ(cluster.ends[0].kind, Kind::kEnd);
  EXPECT_EQ(cluster.ends[0].code, 64);
}

TEST(SetAside, HostsThatFailBetweenDurableStepsAreSetAsideHoweverMany) {
  Cluster cluster(Options(1, 9));
  for (const int id : {5, 2, 7, 1}) {
    cluster.Fail(id, 75, kNoSpace);
    cluster.Pass(2);
    cluster.MakeProgress();
    EXPECT_THAT(cluster.ends, IsEmpty()) << id;
  }
  EXPECT_THAT(cluster.starts.back(), ElementsAre(0, 3, 4, 6, 8));
}

TEST(SetAside, AnotherHostInThePlaceOfTheNodeIsTakenInAtOnce) {
  Cluster cluster(Options(1, 2));
  cluster.Fail(1, 75, kNoSpace);
  cluster.Pass(2);
  cluster.Lose(1);
  cluster.Join(9, 1, "new");
  EXPECT_EQ(cluster.parked[9], "node 1 (host new) is a spare: 1 node trains");
  cluster.Pass(3);
  EXPECT_THAT(cluster.starts.back(), ElementsAre(0, 9));
}

TEST(SetAside, AJobThatWouldEndForWantOfNodesTriesThoseThatAreSetAside) {
  ElasticOptions options = Options(2, 3);
  options.join_timeout = absl::Seconds(5);
  Cluster cluster(options);
  cluster.Fail(1, 75, kNoSpace);
  cluster.Pass(2);
  EXPECT_THAT(cluster.starts.back(), ElementsAre(0, 2));
  cluster.Lose(2);
  cluster.Pass(7);
  EXPECT_THAT(cluster.starts.back(), ElementsAre(0, 1));
  EXPECT_THAT(cluster.ends, IsEmpty());
}

TEST(SetAside, ANodeForWhichThereIsNoPlaceAnyMoreIsASpareWhenItsTimeIsOver) {
  Cluster cluster(Options(1, 2));
  cluster.Join(2, 2);
  cluster.Fail(1, 75, kNoSpace);
  cluster.Pass(2);
  EXPECT_THAT(cluster.starts.back(), ElementsAre(0, 2));
  EXPECT_EQ(cluster.parked[1], absl::StrCat("node 1 (host h1) is set aside for 10s: ", kNoSpace));
  cluster.Pass(11);
  EXPECT_EQ(cluster.parked[1], "node 1 (host h1) is a spare: 2 nodes train");
  ASSERT_THAT(cluster.job().Standings(), SizeIs(3));
  EXPECT_EQ(cluster.job().Standings()[2].aside, "");
}

TEST(SetAside, TwoNodesOfOneAttemptAreSetAsideTogether) {
  Cluster cluster(Options(1, 4), {1, 3});
  EXPECT_THAT(cluster.starts, ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(0, 2)));
  EXPECT_THAT(cluster.why, HasSubstr("node 1 (host h1), node 3 (host h3) are set aside: "));
}

}  // namespace
}  // namespace dtrain::launcher::set_aside_test
