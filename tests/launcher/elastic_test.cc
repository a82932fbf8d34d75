// Jobs whose number of nodes changes: several agents on one host, with scripts as ranks.
#include <csignal>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/launcher/nodes_fixture.h"

namespace dtrain::launcher::elastic_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Says where it is, once it hears signals. It ends well in attempt 1; before, it waits for the
// signal by which ranks are asked to save.
constexpr char kUntilAttempt1[] =
    "trap 'echo saved; exit 143' TERM INT; echo attempt $DTRAIN_ATTEMPT rank $RANK of $WORLD_SIZE; "
    "[ $DTRAIN_ATTEMPT = 1 ] && exit 0; while :; do sleep 0.05; done";

// The last call where a node comes later: long enough for a busy machine to start two nodes within
// it, and then waited for.
constexpr char kBrief[] = "3";

class ElasticTest : public NodesTest {
 protected:
  // A node of a job of 1 to 2 nodes.
  std::vector<std::string> Elastic(int node, const std::string& script = kUntilAttempt1,
                                   const std::string& last_call = "60") const {
    std::vector<std::string> words = Node(node, endpoint_, 1, script);
    words[2] = "1:2";
    words.insert(words.begin() + 1, {"--rdzv-conf", "last_call_timeout=" + last_call});
    return words;
  }
  static std::string Out(int attempt, int rank) {
    return absl::StrFormat("run/logs/attempt-%d/rank-%d.out", attempt, rank);
  }

  // The output of `dtrain status` on the host of `node`, once it has `text`.
  static std::string AwaitStatus(const LaunchedJob& node, const std::string& text) {
    std::string said;
    for (const Deadline deadline = Deadline::After(absl::Seconds(30));
         !absl::StrContains(said, text) && !deadline.Expired();) {
      LaunchedJob status({"status", node.folder() + "/run"});
      EXPECT_EQ(status.Wait(), 0) << status.Err();
      said = status.Out();
    }
    EXPECT_THAT(said, HasSubstr(text));
    return said;
  }

  // The row of `dtrain ps` on the host of `node`.
  static Json RowOf(const LaunchedJob& node) {
    LaunchedJob ps({"ps", "--json"});
    EXPECT_EQ(ps.Wait(), 0) << ps.Err();
    const auto rows = ParseJson(ps.Out(), "ps");
    for (const Json& row : rows.value_or(Json::array())) {
      if (row["run_dir"] == node.folder() + "/run") {
        return row;
      }
    }
    ADD_FAILURE() << "no row of " << node.folder() << ": " << ps.Out();
    return {};
  }

  const std::string endpoint_ = FreeEndpoint();
};

TEST_F(ElasticTest, StartsWithWhatHasComeByTheLastCall) {
  LaunchedJob first(Elastic(0, "echo $WORLD_SIZE ranks", "0.2"));
  EXPECT_EQ(first.Wait(), 0) << first.Err();
  EXPECT_EQ(first.File(Out(0, 0)), "1 ranks\n");
}

TEST_F(ElasticTest, ASpareTakesThePlaceOfAKilledNode) {
  LaunchedJob first(Elastic(0));
  LaunchedJob second(Elastic(1));
  ASSERT_TRUE(second.AwaitText(Out(0, 1), "attempt 0 rank 1 of 2"));
  LaunchedJob spare(Elastic(7));
  ASSERT_TRUE(spare.AwaitText("stderr", "is a spare: 2 nodes train"));
  const std::string status = AwaitStatus(spare, "-          -  spare");
  EXPECT_THAT(status, HasSubstr("attempt 0, 2 ranks on 2 nodes\n"));
  EXPECT_THAT(status, HasSubstr("     1          -             none yet\n"));
  // Each host lists the job alike, also one that has none of its ranks.
  const Json of_spare = RowOf(spare);
  EXPECT_EQ(of_spare["coordinator"], endpoint_);
  EXPECT_EQ(of_spare["nodes_with_ranks"], 2);
  EXPECT_EQ(of_spare["node_rank"], 7);
  const Json of_first = RowOf(first);
  for (const char* const key : {"coordinator", "nodes_with_ranks", "job_started_at", "step"}) {
    EXPECT_EQ(of_spare[key], of_first[key]) << key;
  }
  second.Signal(SIGKILL);
  EXPECT_EQ(first.Wait(), 0) << first.Err();
  EXPECT_EQ(spare.Wait(), 0) << spare.Err();
  EXPECT_THAT(first.Err(), HasSubstr("is lost: the connection of its agent has ended"));
  EXPECT_EQ(first.File(Out(1, 0)), "attempt 1 rank 0 of 2\n");
  EXPECT_EQ(spare.File(Out(1, 1)), "attempt 1 rank 1 of 2\n");
  EXPECT_TRUE(second.AwaitNothingLeft());
}

TEST_F(ElasticTest, WithoutASpareTheJobGoesOnWithFewerNodes) {
  LaunchedJob first(Elastic(0));
  LaunchedJob second(Elastic(1));
  ASSERT_TRUE(second.AwaitText(Out(0, 1), "attempt 0 rank 1 of 2"));
  second.Signal(SIGKILL);
  EXPECT_EQ(first.Wait(), 0) << first.Err();
  EXPECT_EQ(first.File(Out(1, 0)), "attempt 1 rank 0 of 1\n");
}

TEST_F(ElasticTest, ANodeThatHasNoPlaceForItsRanksOutputIsSetAside) {
  LaunchedJob first(Elastic(0));
  // A file in the place of the folder of the first attempt.
  LaunchedJob second(Elastic(1),
                     {"sh", "-c", "mkdir -p run/logs; : >run/logs/attempt-0; exec \"$0\" \"$@\""});
  EXPECT_EQ(first.Wait(), 0) << first.Err();
  EXPECT_EQ(second.Wait(), 0) << "it waits until the job is done: " << second.Err();
  EXPECT_THAT(second.Err(), HasSubstr("no place for the ranks' output: "));
  EXPECT_THAT(second.Err(), HasSubstr(" is set aside for 10s: no place for the ranks' output: "));
  EXPECT_THAT(first.Err(), HasSubstr(" is set aside: no place for the ranks' output: "));
  EXPECT_EQ(first.File(Out(1, 0)), "attempt 1 rank 0 of 1\n");
}

// Nobody learns how the rank ended whose agent died before it, not even that it was an error of the
// program: all that the others see is that its node is gone.
TEST_F(ElasticTest, ARankThatEndsBehindItsAgentIsALostNodeAndNoErrorOfTheProgram) {
  const std::string script =
      "trap 'exit 143' TERM; [ $DTRAIN_ATTEMPT = 1 ] && exit 0; "
      "[ $RANK = 1 ] && { kill -9 $PPID; exit 17; }; while :; do sleep 0.05; done";
  LaunchedJob first(Elastic(0, script));
  LaunchedJob second(Elastic(1, script));
  EXPECT_EQ(second.Wait(), 128 + SIGKILL) << second.Err();
  EXPECT_EQ(first.Wait(), 0) << first.Err();
  EXPECT_THAT(first.Err(), HasSubstr("is lost: the connection of its agent has ended"));
  EXPECT_THAT(first.Err(), Not(HasSubstr("exit code 17")));
  EXPECT_THAT(first.Err(), Not(HasSubstr("the job hangs")));
  EXPECT_TRUE(second.AwaitNothingLeft());
}

TEST_F(ElasticTest, ASilentNodeIsLostAndComesBackAsANewOne) {
  const std::string script =
      "trap 'exit 143' TERM; echo attempt $DTRAIN_ATTEMPT rank $RANK of $WORLD_SIZE; "
      "[ $DTRAIN_ATTEMPT = 2 ] && exit 0; while :; do sleep 0.05; done";
  LaunchedJob first(Elastic(0, script, kBrief));
  LaunchedJob second(Elastic(1, script, kBrief));
  ASSERT_TRUE(second.AwaitText(Out(0, 1), "attempt 0 rank 1 of 2"));
  second.Signal(SIGSTOP);
  ASSERT_TRUE(first.AwaitText(Out(1, 0), "attempt 1 rank 0 of 1"));
  EXPECT_THAT(first.Err(), HasSubstr("is lost: its agent has been silent for 900ms"));
  second.Signal(SIGCONT);
  EXPECT_EQ(first.Wait(), 0) << first.Err();
  EXPECT_EQ(second.Wait(), 0) << second.Err();
  EXPECT_THAT(second.Err(), HasSubstr("the coordinator has given this node up"));
  EXPECT_EQ(first.File(Out(2, 0)), "attempt 2 rank 0 of 2\n");
}

TEST_F(ElasticTest, AKilledNodeThatIsStartedAgainIsTakenInWithASave) {
  const std::string script =
      "trap 'echo saved; exit 143' TERM; echo attempt $DTRAIN_ATTEMPT rank $RANK of $WORLD_SIZE; "
      "[ $DTRAIN_ATTEMPT = 2 ] && exit 0; while :; do sleep 0.05; done";
  LaunchedJob first(Elastic(0, script, kBrief));
  LaunchedJob second(Elastic(1, script, kBrief));
  ASSERT_TRUE(second.AwaitText(Out(0, 1), "attempt 0 rank 1 of 2"));
  second.Signal(SIGKILL);
  ASSERT_TRUE(first.AwaitText(Out(1, 0), "attempt 1 rank 0 of 1"));
  LaunchedJob again(Elastic(1, script, kBrief));
  EXPECT_EQ(first.Wait(), 0) << first.Err();
  EXPECT_EQ(again.Wait(), 0) << again.Err();
  EXPECT_THAT(first.File(Out(1, 0)), HasSubstr("saved"));
  EXPECT_THAT(first.Err(), HasSubstr("the job grows from 1 to 2 nodes"));
  EXPECT_EQ(first.File(Out(2, 0)), "attempt 2 rank 0 of 2\n");
}

TEST_F(ElasticTest, ADrainedNodeLeavesWithASaveAndTheJobGoesOn) {
  LaunchedJob first(Elastic(0));
  LaunchedJob second(Elastic(1));
  ASSERT_TRUE(first.AwaitText(Out(0, 0), "attempt 0 rank 0 of 2"));
  ASSERT_TRUE(second.AwaitText(Out(0, 1), "attempt 0 rank 1 of 2"));
  LaunchedJob refused({"drain", "0", first.folder() + "/run"});
  EXPECT_EQ(refused.Wait(), 64);
  EXPECT_THAT(refused.Err(), HasSubstr("has the job's coordinator and cannot be drained"));
  LaunchedJob drain({"drain", "1", first.folder() + "/run"});
  EXPECT_EQ(drain.Wait(), 0) << drain.Err();
  EXPECT_THAT(drain.Out(), HasSubstr("has left after"));
  EXPECT_EQ(second.Wait(), 0) << second.Err();
  EXPECT_EQ(first.Wait(), 0) << first.Err();
  EXPECT_THAT(second.File(Out(0, 1)), HasSubstr("saved"));
  EXPECT_THAT(first.File(Out(0, 0)), HasSubstr("saved"));
  EXPECT_EQ(first.File(Out(1, 0)), "attempt 1 rank 0 of 1\n");
}

TEST_F(ElasticTest, SigtermToOneNodeLetsItGoAndSigintStopsAll) {
  const std::string script =
      "trap 'echo saved; exit 143' TERM; trap 'exit 130' INT; echo attempt $DTRAIN_ATTEMPT; "
      "while :; do sleep 0.05; done";
  LaunchedJob first(Elastic(0, script));
  LaunchedJob second(Elastic(1, script));
  ASSERT_TRUE(second.AwaitText(Out(0, 1), "attempt 0"));
  ASSERT_TRUE(first.AwaitText(Out(0, 0), "attempt 0"));
  second.Signal(SIGTERM);
  EXPECT_EQ(second.Wait(), 143) << second.Err();
  ASSERT_TRUE(first.AwaitText(Out(1, 0), "attempt 1"));
  EXPECT_THAT(first.File(Out(0, 0)), HasSubstr("saved"));
  first.Signal(SIGINT);
  EXPECT_EQ(first.Wait(), 130) << first.Err();
}

// The coordinator's process: a child of the launcher that runs `dtrain coordinator`.
pid_t CoordinatorOf(const LaunchedJob& job) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    int pid = 0;
    const std::string folder = entry.path().string();
    if (absl::SimpleAtoi(entry.path().filename().string(), &pid) &&
        absl::StrContains(ReadFile(folder + "/cmdline", 4096).value_or(""),
                          std::string("\0coordinator", 12)) &&
        absl::StrContains(ReadFile(folder + "/environ", 1 << 20).value_or(""),
                          "TMPDIR=" + job.folder())) {
      return pid;
    }
  }
  return 0;
}

TEST_F(ElasticTest, RanksTrainOnWhileAKilledCoordinatorIsReplaced) {
  const std::string script =
      "trap 'echo saved; exit 143' TERM; echo attempt $DTRAIN_ATTEMPT rank $RANK of $WORLD_SIZE; "
      "[ $DTRAIN_ATTEMPT = 1 ] && exit 0; while :; do sleep 0.05; done";
  LaunchedJob first(Elastic(0, script));
  LaunchedJob second(Elastic(1, script));
  ASSERT_TRUE(second.AwaitText(Out(0, 1), "attempt 0 rank 1 of 2"));
  const pid_t coordinator = CoordinatorOf(first);
  ASSERT_GT(coordinator, 0);
  kill(coordinator, SIGKILL);
  ASSERT_TRUE(first.AwaitText("stderr", "the coordinator has ended; another takes its place"));
  EXPECT_NE(CoordinatorOf(first), coordinator);
  // Its successor knows the attempt that runs: it lets a node go with a save.
  // Until both agents have come back to it, it refuses.
  int code = -1;
  for (const Deadline deadline = Deadline::After(absl::Seconds(30));
       code != 0 && !deadline.Expired();) {
    code = LaunchedJob({"drain", "1", first.folder() + "/run"}).Wait();
  }
  EXPECT_EQ(code, 0) << first.Err();
  EXPECT_EQ(second.Wait(), 0) << second.Err();
  EXPECT_EQ(first.Wait(), 0) << first.Err();
  EXPECT_EQ(second.File(Out(0, 1)), "attempt 0 rank 1 of 2\nsaved\n");
  EXPECT_EQ(first.File(Out(1, 0)), "attempt 1 rank 0 of 1\n");
  EXPECT_TRUE(first.AwaitNothingLeft());
  EXPECT_EQ(CoordinatorOf(first), 0);
}

TEST_F(ElasticTest, TheOthersWaitForALostNodeZeroAndGoOnWithItsSuccessor) {
  // With a trap: a shell that is about to run its last command may lose a signal.
  const std::string script =
      "trap 'exit 130' INT; echo attempt $DTRAIN_ATTEMPT; while :; do sleep 0.05; done";
  LaunchedJob first(Elastic(0, script));
  LaunchedJob second(Elastic(1, script));
  ASSERT_TRUE(second.AwaitText(Out(0, 1), "attempt 0"));
  first.Signal(SIGKILL);
  ASSERT_TRUE(second.AwaitText("stderr", "node 0, which has the job's coordinator, is lost"))
      << second.Err();
  EXPECT_THAT(second.Err(), Not(HasSubstr("exit code")));
  LaunchedJob successor(Elastic(0, "echo attempt $DTRAIN_ATTEMPT of $WORLD_SIZE"));
  // The agent that is left tells the new coordinator of attempt 0, whose number is not used again.
  ASSERT_TRUE(successor.AwaitText(Out(1, 0), "attempt 1 of 2")) << successor.Err();
  ASSERT_TRUE(second.AwaitText(Out(1, 1), "attempt 1")) << second.Err();
  EXPECT_EQ(second.File(Out(0, 1)), "attempt 0\n") << "its logs have a folder of their own";
  second.Signal(SIGINT);
  EXPECT_EQ(second.Wait(), 130) << second.Err();
  EXPECT_EQ(successor.Wait(), 130) << successor.Err();
}

TEST_F(ElasticTest, AUsersErrorEndsAllNodesWithItsCode) {
  const std::string script = "[ $RANK = 1 ] && exit 64; sleep 1000";
  LaunchedJob first(Elastic(0, script));
  LaunchedJob second(Elastic(1, script));
  EXPECT_EQ(first.Wait(), 64) << first.Err();
  EXPECT_EQ(second.Wait(), 64) << second.Err();
  EXPECT_TRUE(first.AwaitNothingLeft());
  EXPECT_TRUE(second.AwaitNothingLeft());
}

TEST_F(ElasticTest, ASecondAgentOfOneNodeIsRefused) {
  LaunchedJob first(Elastic(0));
  LaunchedJob second(Elastic(1));
  ASSERT_TRUE(second.AwaitText(Out(0, 1), "attempt 0"));
  LaunchedJob third(Elastic(1));
  EXPECT_EQ(third.Wait(), 64) << third.Err();
  EXPECT_THAT(third.Err(), HasSubstr("is node 1 already; give each node its own --node-rank"));
  second.Signal(SIGKILL);
  EXPECT_EQ(first.Wait(), 0) << first.Err();
}

}  // namespace
}  // namespace dtrain::launcher::elastic_test
