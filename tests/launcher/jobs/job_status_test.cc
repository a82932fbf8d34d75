// `dtrain status` of several nodes, from what their agents and the coordinator have said.
#include "launcher/jobs/job_status.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::job_status_test {
namespace {

using ::testing::HasSubstr;

// Two ranks of node 0, of which the second has ended. It has heard of rank 2, which is node 1's.
constexpr char kOfNode0[] = R"({"attempt": 3, "world_size": 3, "phase": "running", "ranks": [
  {"rank": 0, "alive": true, "step": 1200, "phase": "forward", "beat_age_s": 0.2},
  {"rank": 1, "alive": false, "step": 1199, "phase": "program"}],
  "others": [{"rank": 2, "alive": true, "step": 1100, "phase": "data", "beat_age_s": 7.5}]})";
constexpr char kOfNode1[] = R"({"attempt": 3, "world_size": 3, "phase": "stopping", "ranks": [
  {"rank": 2, "alive": true, "step": 1201, "phase": "save", "beat_age_s": 90}]})";

JobNodes TwoNodes() {
  JobNodes job{.attempt = 3};
  job.nodes.push_back({.node = {0, "a", 2}, .text = kOfNode0});
  job.nodes.push_back({.node = {4, "b", 1}, .text = kOfNode1});
  return job;
}

TEST(StatusJson, HasTheRanksOfAllNodes) {
  const Json status = StatusJson(TwoNodes());
  EXPECT_EQ(status["attempt"], 3);
  EXPECT_EQ(status["world_size"], 3);
  EXPECT_EQ(status["phase"], "stopping") << "the others follow";
  ASSERT_EQ(status["ranks"].size(), 3U);
  EXPECT_EQ(status["ranks"][0]["step"], 1200);
  EXPECT_EQ(status["ranks"][1]["host"], "a");
  EXPECT_EQ(status["ranks"][2]["step"], 1201) << "its own word counts, not what others have heard";
  EXPECT_EQ(status["ranks"][2]["node"], 4) << "the number by which users name it";
  EXPECT_EQ(status["node_states"][1]["answers"], true);
  EXPECT_FALSE(status.contains("note"));
}

TEST(StatusJson, ANodeThatDoesNotAnswerIsShownWithWhatAnotherHasLastHeard) {
  JobNodes job = TwoNodes();
  job.nodes[1].text.reset();
  const Json status = StatusJson(job);
  ASSERT_EQ(status["ranks"].size(), 3U);
  const Json& rank = status["ranks"][2];
  EXPECT_TRUE(rank["alive"].is_null());
  EXPECT_EQ(rank["step"], 1100);
  EXPECT_EQ(rank["beat_age_s"], 7.5);
  EXPECT_EQ(status["node_states"][1]["answers"], false);
  EXPECT_EQ(status["phase"], "running");
  EXPECT_EQ(CountNodes(status), "3 ranks on 2 nodes, of which 1 does not answer");
}

TEST(StatusJson, AnAnswerThatIsNoneCountsAsNone) {
  for (const char* const text : {"", "nonsense", "[]", "7"}) {
    JobNodes job = TwoNodes();
    job.nodes[0].text = text;
    const Json status = StatusJson(job);
    ASSERT_EQ(status["ranks"].size(), 3U) << text;
    EXPECT_TRUE(status["ranks"][0]["alive"].is_null()) << text;
    EXPECT_EQ(status["ranks"][1]["step"], -1) << text;
  }
}

// A row of the wrong form, and a rank of another node, change nothing.
TEST(StatusJson, ARankThatItsNodeDoesNotNameIsShownAsEnded) {
  JobNodes job = TwoNodes();
  job.nodes[0].text = R"({"phase": "running", "ranks": [{"rank": 0, "alive": "yes"}, 5,
    {"rank": 2, "alive": true, "step": 9, "phase": "data"}]})";
  const Json status = StatusJson(job);
  ASSERT_EQ(status["ranks"].size(), 3U);
  EXPECT_EQ(status["ranks"][0]["alive"], false);
  EXPECT_EQ(status["ranks"][1]["alive"], false);
  EXPECT_EQ(status["ranks"][2]["step"], 1201);
}

TEST(Summarize, TellsTheSameOnEachHostOfTheJob) {
  JobNodes job = TwoNodes();
  AddMembers({.attempt = 3,
              .rows = {{.node = {0, "a", 2}, .place = 0, .state = "trains"},
                       {.node = {4, "b", 1}, .place = 1, .state = "trains"},
                       {.node = {7, "c", 1}, .state = "spare"}},
              .started_at = 1.75e9},
             job);
  const auto read = JobNodes::Parse(job.Encode());
  ASSERT_TRUE(read.ok()) << read.status();
  const JobSummary summary = Summarize(StatusJson(*read), /*has_nodes=*/true);
  EXPECT_EQ(summary.step, 1201);
  EXPECT_EQ(summary.nodes, 2) << "a spare has no ranks";
  EXPECT_EQ(summary.started_at, 1.75e9);
}

TEST(Summarize, AJobOfOneNodeIsDescribedByItsAgent) {
  const auto answer = ParseJson(kOfNode0, "an answer");
  ASSERT_TRUE(answer.ok()) << answer.status();
  const JobSummary summary = Summarize(*answer, /*has_nodes=*/false);
  EXPECT_EQ(summary.step, 1200);
  EXPECT_EQ(summary.nodes, 1);
  EXPECT_EQ(summary.started_at, 0) << "not known";
}

TEST(Summarize, OfAJobOfSeveralNodesOneAgentAloneDoesNotKnowHowManyHaveRanks) {
  const auto answer = ParseJson(kOfNode0, "an answer");
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(Summarize(*answer, /*has_nodes=*/true).nodes, -1);
  EXPECT_EQ(JobSummary{}.nodes, -1) << "nobody has answered";
}

TEST(Summarize, NoNodeHasRanksBetweenAttemptsUnlessANoteSaysThatNobodyKnows) {
  JobNodes job;
  EXPECT_EQ(Summarize(StatusJson(job), /*has_nodes=*/true).nodes, 0);
  job.note = "the job's coordinator is lost";
  EXPECT_EQ(Summarize(StatusJson(job), /*has_nodes=*/true).nodes, -1);
  job.nodes = TwoNodes().nodes;
  EXPECT_EQ(Summarize(StatusJson(job), /*has_nodes=*/true).nodes, 2);
}

TEST(StatusTable, HasARowForEachRankAndEachNodeWithoutOne) {
  JobNodes job = TwoNodes();
  job.nodes[1].text.reset();
  AddMembers({.attempt = 3,
              .rows = {{.node = {0, "a", 2}, .place = 0, .state = "trains"},
                       {.node = {4, "b", 1}, .place = 1, .state = "leaving"},
                       {.node = {7, "c", 1}, .state = "spare"},
                       {.node = {2, "d\n", 1}, .state = "lost", .why = "silent for 900ms"}}},
             job);
  const Json status = StatusJson(job);
  EXPECT_EQ(status["node_states"][1]["state"], "leaving");
  EXPECT_EQ(StatusTable(status),
            " node  host               rank       step  phase      last word\n"
            "    0  a                     0      1,200  forward    0 s ago\n"
            "    0  a                     1      1,199  has ended  none yet\n"
            "    4  b                     2      1,100  ?          its node does not answer; last "
            "word 7 s ago\n"
            "    7  c                     -          -  spare      \n"
            "    2  d?                    -          -  lost       silent for 900ms\n");
}

TEST(StatusTable, HasNoControlCharactersOfOthers) {
  JobNodes job;
  job.nodes.push_back({.node = {0, "a\x1b", 1}, .text = R"({"phase": "running", "ranks": [
    {"rank": 0, "alive": true, "step": 1, "phase": "\u001b[2J"}]})"});
  AddMembers({.rows = {{.node = {1, "b\r", 1}, .state = "spare\x1b", .why = "\x07"}}}, job);
  for (const char c : StatusTable(StatusJson(job))) {
    EXPECT_TRUE(c == '\n' || c >= ' ') << static_cast<int>(c);
  }
}

TEST(StatusTable, OfOneNodeNamesNoNodes) {
  const Json status = *ParseJson(kOfNode1, "status");
  EXPECT_EQ(StatusTable(status),
            "  rank       step  phase      last word\n"
            "     2      1,201  save       1 min ago; does it hang? See its log\n");
}

TEST(JobNodes, WhatAnAgentTellsComesBackWhole) {
  JobNodes job = TwoNodes();
  job.nodes[1].text.reset();
  job.note = "the \"store\" is gone";
  AddMembers({.attempt = 3, .rows = {{.node = {7, "c", 1}, .state = "left", .why = "drained"}}},
             job);
  const auto back = JobNodes::Parse(job.Encode());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->Encode(), job.Encode());
  EXPECT_EQ(StatusJson(*back), StatusJson(job));
  EXPECT_EQ(StatusJson(*back)["note"], job.note);
}

TEST(JobNodes, RefusesWhatIsNoAnswer) {
  JobNodes too_many = TwoNodes();
  too_many.nodes[1].node.ranks = 1 << 20;
  const std::vector<std::string> texts = {"", "no such request", "{}",
                                          R"({"attempt": 1, "nodes": [{}]})", too_many.Encode()};
  for (const std::string& text : texts) {
    EXPECT_FALSE(JobNodes::Parse(text).ok()) << text;
  }
}

// Between two attempts, while the nodes of an elastic job gather.
TEST(StatusJson, OfAJobWithoutAnAttemptHasItsNodes) {
  JobNodes job;
  AddMembers({.rows = {{.node = {0, "a", 2}, .state = "waiting"}}}, job);
  const Json status = StatusJson(job);
  EXPECT_EQ(status["phase"], "waiting");
  EXPECT_EQ(CountNodes(status), "0 ranks on 0 nodes");
  EXPECT_THAT(StatusTable(status), HasSubstr("-          -  waiting"));
}

}  // namespace
}  // namespace dtrain::launcher::job_status_test
