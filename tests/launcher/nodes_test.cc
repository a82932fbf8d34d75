// Several agents on one host.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "absl/time/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "comm/net/store_client.h"
#include "comm/net/store_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/machine.h"
#include "tests/launcher/nodes_fixture.h"

namespace dtrain::launcher::nodes_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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

TEST_F(NodesTest, ANodeWithFewerRanksThanTeeNamesSaysSoAndGoesOn) {
  const std::string endpoint = FreeEndpoint();
  const auto node = [&](int number, int ranks) {
    std::vector<std::string> words = Node(number, endpoint, ranks, "echo out $RANK");
    words.insert(words.begin() + 1, {"--tee", "1:1"});
    return words;
  };
  LaunchedJob second(node(1, 1));
  LaunchedJob first(node(0, 2));
  EXPECT_EQ(first.Wait(), 0) << first.Err();
  EXPECT_EQ(second.Wait(), 0) << second.Err();
  EXPECT_THAT(first.Out(), HasSubstr("[rank 1] out 1\n"));
  EXPECT_THAT(first.Err(), Not(HasSubstr("no effect on this node")));
  EXPECT_THAT(second.Err(), HasSubstr("dtrain: no effect on this node: --tee names local rank 1; "
                                      "allowed with 1 rank on a node: 0\n"));
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
  EXPECT_THAT(first.Err(), HasSubstr("its stderr, on host "));
  EXPECT_THAT(second.Err(), Not(HasSubstr("its stderr, on host ")));
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

// Its connection ends with it. By its silence it would be lost after 15 s.
TEST_F(NodesTest, AKilledLauncherOfAnotherNodeIsNoticedAtOnce) {
  const std::string endpoint = FreeEndpoint();
  LaunchedJob first(Node(0, endpoint, 1, "echo ready; sleep 1000"));
  LaunchedJob second(Node(1, endpoint, 1, "echo ready; sleep 1000"));
  ASSERT_TRUE(first.AwaitText("run/logs/attempt-0/rank-0.out", "ready"));
  ASSERT_TRUE(second.AwaitText("run/logs/attempt-0/rank-1.out", "ready"));
  const absl::Time killed = absl::Now();
  second.Signal(SIGKILL);
  EXPECT_EQ(first.Wait(), 75) << first.Err();
  EXPECT_LT(absl::Now() - killed, absl::Seconds(10));
  EXPECT_THAT(first.Err(), HasSubstr("node 1 is lost: the connection of its agent has ended"));
  EXPECT_TRUE(first.AwaitNothingLeft());
  EXPECT_TRUE(second.AwaitNothingLeft());
}

// Its ranks never come, and those of the other node would wait for them.
TEST_F(NodesTest, ANodeThatHasNoPlaceForItsRanksOutputEndsAll) {
  const std::string endpoint = FreeEndpoint();
  LaunchedJob first(Node(0, endpoint, 1, "sleep 1000"));
  // A file in the place of the folder of the attempt that node 0 counts.
  LaunchedJob second(Node(1, endpoint, 1, "sleep 1000"),
                     {"sh", "-c", "mkdir -p run/logs; : >run/logs/attempt-0; exec \"$0\" \"$@\""});
  EXPECT_EQ(second.Wait(), 64) << second.Err();
  EXPECT_THAT(second.Err(), HasSubstr("no place for the ranks' output: "));
  EXPECT_THAT(second.Err(), HasSubstr("another --log-dir"));
  EXPECT_EQ(first.Wait(), 64) << first.Err();
  EXPECT_THAT(first.Err(), HasSubstr("no place for the ranks' output: "));
  EXPECT_TRUE(first.AwaitNothingLeft());
}

// Only node 0 has rank 0's records where each node has a run directory of its own.
TEST_F(NodesTest, AllNodesKnowTheProgressBetweenRestarts) {
  const std::string endpoint = FreeEndpoint();
  const std::string script =
      "if [ $RANK = 0 ]; then mkdir -p $DTRAIN_RUN_DIR/metrics; "
      "echo '{\"v\":1,\"kind\":\"ckpt\",\"durable\":true,\"m\":{},\"step\":'$DTRAIN_ATTEMPT} "
      ">>$DTRAIN_RUN_DIR/metrics/rank-0.jsonl; [ $DTRAIN_ATTEMPT = 4 ] || exit 75; fi; "
      "[ $DTRAIN_ATTEMPT = 4 ] || sleep 1000";
  const auto restarted = [&](int node) {
    std::vector<std::string> words = Node(node, endpoint, 1, script);
    words.insert(words.begin() + 1, {"--max-restarts", "9"});
    return words;
  };
  LaunchedJob first(restarted(0));
  LaunchedJob second(restarted(1));
  for (LaunchedJob* job : {&first, &second}) {
    EXPECT_EQ(job->Wait(), 0) << job->Err();
    EXPECT_THAT(job->Err(), HasSubstr("restart 4 of 9 in 0\n"));
  }
}

TEST_F(NodesTest, StatusTellsOnEachNodeOfTheRanksOfAllAndWhichNodeDoesNotAnswer) {
  const std::string endpoint = FreeEndpoint();
  const std::string script = "trap 'exit 143' TERM; echo ready; while :; do sleep 0.05; done";
  LaunchedJob first(Node(0, endpoint, 2, script));
  LaunchedJob second(Node(1, endpoint, 1, script));
  for (const char* const out : {"run/logs/attempt-0/rank-0.out", "run/logs/attempt-0/rank-1.out"}) {
    ASSERT_TRUE(first.AwaitText(out, "ready"));
  }
  ASSERT_TRUE(second.AwaitText("run/logs/attempt-0/rank-2.out", "ready"));
  LaunchedJob status({"status", "--json", second.folder() + "/run"});
  EXPECT_EQ(status.Wait(), 0) << status.Err();
  const auto told = ParseJson(status.Out(), "status");
  ASSERT_TRUE(told.ok()) << told.status();
  ASSERT_EQ((*told)["ranks"].size(), 3U) << status.Out();
  for (size_t rank = 0; rank < 3; ++rank) {
    const Json& row = (*told)["ranks"][rank];
    EXPECT_EQ(row["rank"], rank);
    EXPECT_EQ(row["node"], rank / 2);
    EXPECT_EQ(row["host"], HostName());
    EXPECT_EQ(row["alive"], true);
  }
  LaunchedJob logs({"logs", "--rank", "2", first.folder() + "/run"});
  EXPECT_EQ(logs.Wait(), 64);
  EXPECT_THAT(logs.Err(), HasSubstr("rank 2 runs on node 1; see its output by: ssh " + HostName() +
                                    " dtrain logs --rank 2 " + first.folder() + "/run"));

  second.Signal(SIGSTOP);
  LaunchedJob silent({"status", first.folder() + "/run"});
  EXPECT_EQ(silent.Wait(), 0) << silent.Err();
  EXPECT_THAT(silent.Out(), HasSubstr("3 ranks on 2 nodes, of which 1 does not answer\n"));
  EXPECT_THAT(silent.Out(), HasSubstr("     1          -             none yet\n"));
  EXPECT_THAT(silent.Out(), HasSubstr("     2          -  ?          its node does not answer\n"));
  second.Signal(SIGCONT);
  first.Signal(SIGTERM);
  EXPECT_EQ(first.Wait(), 143) << first.Err();
  EXPECT_EQ(second.Wait(), 143) << second.Err();
}

// Nodes that are started by hand may have other installations.
TEST_F(NodesTest, AnotherVersionIsRefused) {
  constexpr absl::Duration kAtMost = absl::Seconds(30);
  const comm::JobKey key = *comm::JobKey::FromFile(token_);
  const auto server = *comm::StoreServer::Create("127.0.0.1", 0, key, 0);
  const auto node_0 = *comm::StoreClient::Connect(
      server->endpoint(), key,
      {.epoch = 0, .role = comm::Hello::Role::kAgent, .id = 0, .name = "node 0"},
      Deadline::After(kAtMost));
  const char* const job = R"({"run_id": "x", "nodes": 2, "master_port": 1, "version": "9.9.9"})";
  ASSERT_TRUE(node_0->Set("launch/job", job, Deadline::After(kAtMost)).ok());
  LaunchedJob second(Node(1, server->endpoint().ToString(), 1, "true"));
  EXPECT_EQ(second.Wait(), 64) << second.Err();
  EXPECT_THAT(second.Err(), HasSubstr("node 0 has dtrain 9.9.9, this node "));
}

TEST_F(NodesTest, AnotherTokenIsRefused) {
  const std::string endpoint = FreeEndpoint();
  LaunchedJob first(Node(0, endpoint, 1, "true"));
  token_ = folder_.path() + "/other";
  ASSERT_TRUE(comm::JobKey::Generate()->WriteFile(token_).ok());
  LaunchedJob stranger(Node(1, endpoint, 1, "true"));
  EXPECT_EQ(stranger.Wait(), 64) << stranger.Err();
  first.Signal(SIGINT);  // The first agent still waits for node 1.
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
  first.Signal(SIGINT);  // The first agent still waits for node 1.
  EXPECT_EQ(first.Wait(), 130) << first.Err();
}

TEST_F(NodesTest, AnAddressOfAnotherHostIsRefusedWithThoseOfThisOne) {
  std::vector<std::string> arguments = Node(1, FreeEndpoint(), 1, "true");
  arguments.insert(arguments.begin() + 1, {"--local-addr", "203.0.113.77"});  // RFC 5737.
  LaunchedJob job(arguments);
  EXPECT_EQ(job.Wait(), 64) << job.Err();
  EXPECT_THAT(job.Err(), HasSubstr("--local-addr is \"203.0.113.77\", where this host cannot be"));
  EXPECT_THAT(job.Err(), HasSubstr("127.0.0.1 ("));
  EXPECT_TRUE(job.AwaitNothingLeft());
}

TEST_F(NodesTest, MissingNodesAreNamedAfterTheJoinTimeout) {
  std::vector<std::string> arguments = Node(0, FreeEndpoint(), 1, "true");
  arguments.insert(arguments.begin() + 1, {"--rdzv-conf", "join_timeout=1"});
  LaunchedJob first(arguments);
  EXPECT_EQ(first.Wait(), 75);
  EXPECT_THAT(first.Err(), HasSubstr("node 1 did not join in time"));
}

TEST_F(NodesTest, ThoseWhoWaitSayForWhomAndWhere) {
  const std::string endpoint = FreeEndpoint();
  LaunchedJob lonely(Node(0, endpoint, 1, "true"));
  const std::string nobody = FreeEndpoint();
  LaunchedJob other(Node(1, nobody, 1, "true"));
  EXPECT_TRUE(lonely.AwaitText(
      "stderr", absl::StrCat("1 of 2 nodes have come to ", endpoint, "; still to come: node 1")));
  EXPECT_TRUE(other.AwaitText(
      "stderr", absl::StrCat("node 1 waits for `dtrain launch` of node 0 at ", nobody)));
  lonely.Signal(SIGINT);
  other.Signal(SIGINT);
  EXPECT_EQ(lonely.Wait(), 130) << lonely.Err();
  EXPECT_EQ(other.Wait(), 130) << other.Err();
}

TEST_F(NodesTest, NodesMeetAtAnIpv6Address) {
  if (FreePort("::1") == 0) {
    GTEST_SKIP() << "this host has no ::1";
  }
  const std::string endpoint = absl::StrCat("[::1]:", test_ports::UnusedPort());
  const std::string script = "echo $MASTER_ADDR $DTRAIN_STORE $DTRAIN_HOST_ADDRESS";
  LaunchedJob first(Node(0, endpoint, 1, script));
  LaunchedJob second(Node(1, endpoint, 1, script));
  EXPECT_EQ(first.Wait(), 0) << first.Err();
  EXPECT_EQ(second.Wait(), 0) << second.Err();
  EXPECT_EQ(second.File("run/logs/attempt-0/rank-1.out"), absl::StrCat("::1 ", endpoint, " ::1\n"));
}

// A run that both nodes share, with logs of an earlier launch.
class FreshNodesTest : public NodesTest {
 protected:
  void SetUp() override {
    NodesTest::SetUp();
    ASSERT_TRUE(MakeDirectories(run_ + "/logs/attempt-0").ok());
    ASSERT_TRUE(WriteFileAtomic(run_ + "/config.json", "{}").ok());
  }
  void TearDown() override { std::filesystem::remove_all(folder_.path()); }
  std::vector<std::string> Fresh(int node, const std::string& endpoint) const {
    std::vector<std::string> words = Node(node, endpoint, 1, "echo rank $RANK");
    words[static_cast<size_t>(std::find(words.begin(), words.end(), "run") - words.begin())] = run_;
    words.insert(words.end(), {"name", "--fresh"});
    return words;
  }
  const std::string run_ = folder_.path() + "/shared";
};

TEST_F(FreshNodesTest, NoNodeWritesIntoTheOldRun) {
  const std::string endpoint = FreeEndpoint();
  LaunchedJob second(Fresh(1, endpoint));
  LaunchedJob first(Fresh(0, endpoint));
  EXPECT_EQ(first.Wait(), 0) << first.Err();
  EXPECT_EQ(second.Wait(), 0) << second.Err();
  EXPECT_THAT(first.Err(), HasSubstr(run_ + ".old-1"));
  for (const char* file : {"/logs/attempt-0/rank-0.out", "/logs/attempt-0/rank-1.out",
                           "/events.jsonl", "/events-node-1.jsonl"}) {
    EXPECT_TRUE(FileExists(run_ + file)) << file;
    EXPECT_FALSE(FileExists(run_ + ".old-1" + file)) << file;
  }
}

TEST_F(FreshNodesTest, TheOldRunStaysWhereANodeDoesNotCome) {
  std::vector<std::string> arguments = Fresh(0, FreeEndpoint());
  arguments.insert(arguments.begin() + 1, {"--rdzv-conf", "join_timeout=1"});
  LaunchedJob first(arguments);
  EXPECT_EQ(first.Wait(), 75) << first.Err();
  EXPECT_TRUE(FileExists(run_ + "/config.json"));
  EXPECT_FALSE(FileExists(run_ + ".old-1"));
  EXPECT_FALSE(FileExists(run_ + "/events.jsonl")) << "nothing began";
}

TEST_F(FreshNodesTest, WhatNodeZeroCannotDoEndsTheOthers) {
  const std::string endpoint = FreeEndpoint();
  std::vector<std::string> words = Fresh(0, endpoint);
  // A folder that cannot be renamed, because it is the launcher's working directory.
  words[static_cast<size_t>(std::find(words.begin(), words.end(), run_) - words.begin())] = ".";
  LaunchedJob first(words, {"sh", "-c", "echo {} >config.json; exec \"$0\" \"$@\""});
  LaunchedJob second(Fresh(1, endpoint));
  EXPECT_NE(first.Wait(), 0);
  EXPECT_THAT(first.Err(), HasSubstr("cannot move . aside"));
  EXPECT_NE(second.Wait(), 0);
  EXPECT_THAT(second.Err(), HasSubstr("node 0 cannot start: cannot move . aside"));
}

}  // namespace
}  // namespace dtrain::launcher::nodes_test
