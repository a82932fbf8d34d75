// Several agents on one host.
#include <csignal>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/launcher/nodes_fixture.h"

namespace dtrain::launcher::nodes_test {
namespace {

using ::testing::HasSubstr;

TEST_F(NodesTest, TwoAgentsNumberTheRanksNodeByNode) {
  const std::string endpoint = FreeEndpoint();
  const std::string script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $GROUP_RANK $DTRAIN_RUN_ID";
  LaunchedJob second(Node(1, endpoint, 1, script));
  LaunchedJob first(Node(0, endpoint, 2, script));
  EXPECT_EQ(first.Wait(), 0) << first.Err();
  EXPECT_EQ(second.Wait(), 0) << second.Err();
  const std::string rank_1 = first.File("run/logs/attempt-0/rank-1.out");
  const std::string rank_2 = second.File("run/logs/attempt-0/rank-2.out");
  EXPECT_THAT(rank_1, HasSubstr("1 3 1 0 "));
  EXPECT_THAT(rank_2, HasSubstr("2 3 0 1 "));
  EXPECT_EQ(rank_1.substr(8), rank_2.substr(8)) << "one run id";
}

TEST_F(NodesTest, AFailureOnOneNodeStopsTheOtherAndBothNameIt) {
  const std::string endpoint = FreeEndpoint();
  const std::string script = "if [ $RANK = 1 ]; then exit 17; fi; sleep 1000";
  LaunchedJob first(Node(0, endpoint, 1, script));
  LaunchedJob second(Node(1, endpoint, 1, script));
  for (LaunchedJob* job : {&first, &second}) {
    EXPECT_EQ(job->Wait(), 17) << job->Err();
    EXPECT_THAT(job->Err(), HasSubstr("rank 1 ended with exit code 17"));
    EXPECT_TRUE(job->AwaitNothingLeft());
  }
}

TEST_F(NodesTest, AStopSignalOnOneNodeReachesAll) {
  const std::string endpoint = FreeEndpoint();
  const std::string script = "trap 'exit 143' TERM; echo ready; while :; do sleep 0.05; done";
  LaunchedJob first(Node(0, endpoint, 1, script));
  LaunchedJob second(Node(1, endpoint, 1, script));
  ASSERT_TRUE(first.AwaitText("run/logs/attempt-0/rank-0.out", "ready"));
  ASSERT_TRUE(second.AwaitText("run/logs/attempt-0/rank-1.out", "ready"));
  second.Signal(SIGTERM);
  EXPECT_EQ(first.Wait(), 143) << first.Err();
  EXPECT_EQ(second.Wait(), 143) << second.Err();
}

TEST_F(NodesTest, TheOtherNodeStopsWhenTheCoordinatorsLauncherIsKilled) {
  const std::string endpoint = FreeEndpoint();
  LaunchedJob first(Node(0, endpoint, 1, "echo ready; sleep 1000"));
  LaunchedJob second(Node(1, endpoint, 1, "echo ready; sleep 1000"));
  ASSERT_TRUE(second.AwaitText("run/logs/attempt-0/rank-1.out", "ready"));
  first.Signal(SIGKILL);
  EXPECT_EQ(second.Wait(), 75) << second.Err();
  EXPECT_THAT(second.Err(), HasSubstr("coordinator on node 0 is lost"));
  EXPECT_TRUE(first.AwaitNothingLeft());
  EXPECT_TRUE(second.AwaitNothingLeft());
}

TEST_F(NodesTest, AnotherTokenIsRefused) {
  const std::string endpoint = FreeEndpoint();
  LaunchedJob first(Node(0, endpoint, 1, "true"));
  token_ = folder_.path() + "/other";
  ASSERT_TRUE(comm::JobKey::Generate()->WriteFile(token_).ok());
  LaunchedJob stranger(Node(1, endpoint, 1, "true"));
  EXPECT_EQ(stranger.Wait(), 64) << stranger.Err();
  first.Signal(SIGINT);  // It still waits for its node 1.
  EXPECT_EQ(first.Wait(), 130) << first.Err();
}

// Two agents that both are node 1 would start the same ranks twice.
TEST_F(NodesTest, ASecondAgentOfOneNodeIsRefused) {
  const std::string endpoint = FreeEndpoint();
  const std::string go = folder_.path() + "/go";
  const std::string script =
      absl::StrCat("echo ready; while [ ! -e ", go, " ]; do sleep 0.05; done");
  LaunchedJob first(Node(0, endpoint, 1, "true"));
  LaunchedJob second(Node(1, endpoint, 1, script));
  ASSERT_TRUE(second.AwaitText("run/logs/attempt-0/rank-1.out", "ready"));
  LaunchedJob third(Node(1, endpoint, 1, script));
  EXPECT_EQ(third.Wait(), 64) << third.Err();
  EXPECT_THAT(third.Err(),
              HasSubstr("another agent is node 1 already; give each node its own --node-rank"));
  std::ofstream(go).close();
  EXPECT_EQ(second.Wait(), 0) << second.Err();
  EXPECT_EQ(first.Wait(), 0) << first.Err();
}

TEST_F(NodesTest, ANodeThatCountsOtherNodesIsRefused) {
  const std::string endpoint = FreeEndpoint();
  LaunchedJob first(Node(0, endpoint, 1, "true"));
  std::vector<std::string> arguments = Node(1, endpoint, 1, "true");
  arguments[2] = "3";
  LaunchedJob stranger(arguments);
  EXPECT_EQ(stranger.Wait(), 64) << stranger.Err();
  EXPECT_THAT(stranger.Err(), HasSubstr("node 0 was started with --nnodes 2, this node with 3"));
  first.Signal(SIGINT);  // It still waits for its node 1.
  EXPECT_EQ(first.Wait(), 130) << first.Err();
}

TEST_F(NodesTest, MissingNodesAreNamedAfterTheJoinTimeout) {
  std::vector<std::string> arguments = Node(0, FreeEndpoint(), 1, "true");
  arguments.insert(arguments.begin() + 1, {"--rdzv-conf", "join_timeout=1"});
  LaunchedJob first(arguments);
  EXPECT_EQ(first.Wait(), 75);
  EXPECT_THAT(first.Err(), HasSubstr("node 1 did not join in time"));
}

}  // namespace
}  // namespace dtrain::launcher::nodes_test
