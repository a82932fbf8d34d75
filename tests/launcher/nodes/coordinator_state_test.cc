// An agent's connection and its messages tell of its end on two ways: whichever is seen first, the
// coordinator draws the same conclusion. A failure that others tell of is not lost with its node.
#include "launcher/nodes/coordinator_state.h"

#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/nodes/lobby_inbox.h"

namespace dtrain::launcher::coordinator_state_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = LobbyOrder::Kind;
constexpr int64_t kSecond = 1'000'000'000;

LobbyMessage Join(int number, const std::string& name) {
  return {.kind = LobbyMessage::Kind::kJoin,
          .from = name,
          .node = {number, absl::StrCat("h", number), 1}};
}

// How attempt 0 has ended on a node, by the first end that it knows.
LobbyMessage Report(const std::string& name, const RankEnd& cause) {
  LobbyMessage message{.kind = LobbyMessage::Kind::kReport, .from = name};
  message.report = {.code = CodeOf(cause), .cause = cause};
  return message;
}

RankEnd EndOfRank(int rank, int exit_code, int signal = 0) {
  return {.rank = rank, .node = rank, .exit_code = exit_code, .signal = signal};
}

// An attempt of the agents "a0", "a1" and "a2", whose numbers are those of their nodes.
class CoordinatorStateTest : public ::testing::Test {
 protected:
  CoordinatorStateTest() {
    Take({.messages = {Join(0, "a0"), Join(1, "a1"), Join(2, "a2")}});
    EXPECT_THAT(Kinds(), ElementsAre(Kind::kStart));
  }
  void Take(const LobbyNews& news) {
    now_ += kSecond / 10;
    coordinator_.Take(news, now_);
    coordinator_.Tick(now_);
  }
  std::vector<LobbyOrder> Orders() { return coordinator_.TakeOrders(); }
  std::vector<Kind> Kinds() {
    std::vector<Kind> kinds;
    for (const LobbyOrder& order : Orders()) {
      kinds.push_back(order.kind);
    }
    return kinds;
  }
  // The last order when node 1 is lost, and the others have heard of the end of its rank before.
  LobbyOrder AfterLossBehind(const RankEnd& cause) {
    Take({.gone = {"a1"}});
    Take({.messages = {Report("a0", cause), Report("a2", cause)}});
    for (int second = 0; second < 3; ++second) {
      now_ += kSecond;
      Take({});
    }
    const std::vector<LobbyOrder> orders = Orders();
    return orders.empty() ? LobbyOrder{.kind = Kind::kAnswer} : orders.back();
  }

  CoordinatorState coordinator_{
      {.nodes_min = 1, .nodes_max = 3, .restarts_max = 5}, absl::Minutes(1), 0};
  int64_t now_ = 0;
};

TEST_F(CoordinatorStateTest, AReportThatWasPostedBeforeTheConnectionEndedCounts) {
  Take({.messages = {Report("a1", EndOfRank(1, 64))}, .gone = {"a1"}});
  EXPECT_THAT(Kinds(), ElementsAre(Kind::kDismiss)) << "its agent is gone, and no node is lost";
  Take({.messages = {Report("a0", EndOfRank(0, 75)), Report("a2", EndOfRank(2, 75))}});
  const std::vector<LobbyOrder> orders = Orders();
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders[0].kind, Kind::kEnd);
  EXPECT_EQ(orders[0].code, 64);
  EXPECT_THAT(orders[0].text, HasSubstr("exit code 64 is not restarted"));
}

TEST_F(CoordinatorStateTest, ACtrlCCountsThoughItsAgentIsGoneBeforeTheOthersHaveSaved) {
  const auto report = [](const std::string& name, bool stopped_here) {
    LobbyMessage message{.kind = LobbyMessage::Kind::kReport, .from = name};
    message.report = {.code = 130, .stop_signal = SIGINT, .stopped_here = stopped_here};
    return message;
  };
  Take({.messages = {report("a1", true)}, .gone = {"a1"}});
  Take({.messages = {report("a0", false), report("a2", false)}});
  const std::vector<LobbyOrder> orders = Orders();
  ASSERT_FALSE(orders.empty());
  EXPECT_EQ(orders.back().kind, Kind::kEnd);
  EXPECT_EQ(orders.back().code, 130);
}

TEST_F(CoordinatorStateTest, ItCountsAlsoIfAnotherNodeHasJoinedBeforeIt) {
  Take({.messages = {Join(7, "a7"), Report("a1", EndOfRank(1, 64))}, .gone = {"a1"}});
  for (const LobbyOrder& order : Orders()) {
    EXPECT_TRUE(order.kind == Kind::kPark || order.kind == Kind::kDismiss) << order.text;
  }
}

TEST_F(CoordinatorStateTest, AnAgentThatIsStartedAgainJoinsBehindTheEndOfTheFormerOne) {
  Take({.messages = {Join(1, "b1")}, .gone = {"a1"}});
  const std::vector<LobbyOrder> orders = Orders();
  ASSERT_EQ(orders.size(), 3U);
  EXPECT_EQ(orders[0].kind, Kind::kDismiss);
  EXPECT_THAT(orders[0].names, ElementsAre("a1"));
  EXPECT_EQ(orders[1].kind, Kind::kStop);
  EXPECT_EQ(orders[1].text, "node 1 (host h1) is lost: the connection of its agent has ended");
  EXPECT_EQ(orders[2].kind, Kind::kPark);
  EXPECT_THAT(orders[2].names, ElementsAre("b1")) << "until the attempt has ended";
}

TEST_F(CoordinatorStateTest, AnAgentThatEndedBeforeItsJoinWasReadDoesNotKeepTheNextOneOut) {
  Take({.messages = {Join(7, "a7"), Join(7, "b7")}, .gone = {"a7"}});
  for (const LobbyOrder& order : Orders()) {
    if (order.kind == Kind::kDismiss) {
      EXPECT_THAT(order.names, ElementsAre("a7")) << order.text;
    }
  }
  Take({.gone = {"b7"}});
  ASSERT_THAT(Kinds(), ElementsAre(Kind::kDismiss)) << "it was a member";
}

TEST_F(CoordinatorStateTest, AnErrorOfTheProgramOnANodeThatIsLostBehindItEndsTheJob) {
  const LobbyOrder last = AfterLossBehind(EndOfRank(1, 64));
  EXPECT_EQ(last.kind, Kind::kEnd);
  EXPECT_EQ(last.code, 64);
}

TEST_F(CoordinatorStateTest, ANodeThatIsLostBehindARankThatWasKilledIsLeftOut) {
  const LobbyOrder last = AfterLossBehind(EndOfRank(1, 0, SIGKILL));
  EXPECT_EQ(last.kind, Kind::kStart);
  EXPECT_THAT(last.names, ElementsAre("a0", "a2"));
}

TEST_F(CoordinatorStateTest, AHostThatGoesDownStopsItsRanksFirst) {
  EXPECT_EQ(AfterLossBehind(EndOfRank(1, 143)).kind, Kind::kStart);
}

TEST_F(CoordinatorStateTest, AnErrorOnANodeThatIsLeftMayComeOfTheLoss) {
  EXPECT_EQ(AfterLossBehind(EndOfRank(2, 1)).kind, Kind::kStart);
}

// "place number state", in their order.
std::vector<std::string> Told(const std::optional<LobbyNodes>& nodes) {
  std::vector<std::string> told;
  for (const LobbyNodes::Row& row : nodes.value_or(LobbyNodes{}).rows) {
    told.push_back(absl::StrCat(row.place, " ", row.node.number, " ", row.state));
  }
  return told;
}

// The disk of a spare may be full: nothing of the program has failed.
TEST_F(CoordinatorStateTest, ANodeThatCannotStartItsRanksIsSetAside) {
  LobbyMessage report{.kind = LobbyMessage::Kind::kReport, .from = "a1"};
  report.report = {.code = 75, .cannot_start = true, .why = "logs: No space left on device"};
  const auto read = LobbyMessage::Parse(report.Encode());
  ASSERT_TRUE(read.ok()) << read.status();
  Take({.messages = {*read}});
  std::vector<LobbyOrder> orders = Orders();
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders[0].kind, Kind::kStop);
  EXPECT_FALSE(orders[0].save);
  EXPECT_EQ(orders[0].text,
            "node 1 (host h1) cannot start its ranks: logs: No space left on device");
  Take({.messages = {Report("a0", EndOfRank(0, 75)), Report("a2", EndOfRank(2, 75))}});
  orders = Orders();
  ASSERT_EQ(orders.size(), 2U);
  EXPECT_EQ(orders[0].kind, Kind::kStart);
  EXPECT_THAT(orders[0].names, ElementsAre("a0", "a2"));
  EXPECT_EQ(orders[1].kind, Kind::kPark);
  EXPECT_THAT(orders[1].names, ElementsAre("a1"));
  EXPECT_EQ(orders[1].text, "node 1 (host h1) is set aside for 10s: logs: No space left on device");
  const std::optional<LobbyNodes> nodes = coordinator_.TakeNodes();
  EXPECT_THAT(Told(nodes), ElementsAre("0 0 trains", "1 2 trains", "-1 1 aside"));
  ASSERT_TRUE(nodes.has_value());
  EXPECT_EQ(nodes->rows[2].why, "logs: No space left on device");
  // The next coordinator learns of it from any agent.
  const auto start = LobbyOrder::Parse(orders[0].Encode());
  ASSERT_TRUE(start.ok()) << start.status();
  ASSERT_EQ(start->failures.hosts.count(1), 1U);
  const HostFailures& failures = start->failures.hosts.at(1);
  EXPECT_EQ(failures.cause, "No space left on device");
  EXPECT_EQ(failures.error, "logs: No space left on device");
  EXPECT_EQ(failures.times, 1);
  EXPECT_EQ(failures.host, "h1");
}

TEST_F(CoordinatorStateTest, NodeZeroIsNotLeftOut) {
  const auto report = [](const std::string& name, NodeReport content) {
    LobbyMessage message{.kind = LobbyMessage::Kind::kReport, .from = name};
    message.report = std::move(content);
    return message;
  };
  Take({.messages = {report("a0", {.code = 64, .cannot_start = true})}});
  EXPECT_THAT(Kinds(), IsEmpty());
  Take({.messages = {report("a1", {.code = 75}), report("a2", {.code = 75})}});
  const std::vector<LobbyOrder> orders = Orders();
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders[0].kind, Kind::kEnd);
  EXPECT_EQ(orders[0].code, 64);
}

TEST_F(CoordinatorStateTest, ItAwaitsItsOwnEndWithItsAgentWhileTheJobGoesOn) {
  EXPECT_FALSE(coordinator_.AwaitsOwnEnd({"a1", "unknown"}));
  EXPECT_TRUE(coordinator_.AwaitsOwnEnd({"a1", "a0"}));
  Take({.messages = {Report("a0", {}), Report("a1", {}), Report("a2", {})}});
  ASSERT_THAT(Kinds(), ElementsAre(Kind::kEnd));
  EXPECT_FALSE(coordinator_.AwaitsOwnEnd({"a0"})) << "who joins now has to learn of the end";
  EXPECT_THAT(Kinds(), IsEmpty());
}

TEST_F(CoordinatorStateTest, TellsOfItsNodesWhenTheyChange) {
  std::optional<LobbyNodes> nodes = coordinator_.TakeNodes();
  EXPECT_THAT(Told(nodes), ElementsAre("0 0 trains", "1 1 trains", "2 2 trains"));
  ASSERT_TRUE(nodes.has_value());
  EXPECT_EQ(nodes->attempt, 0);
  Take({});
  EXPECT_FALSE(coordinator_.TakeNodes().has_value()) << "nothing has changed";
  Take({.messages = {Join(7, "a7")}, .gone = {"a1"}});
  Orders();
  nodes = coordinator_.TakeNodes();
  EXPECT_THAT(Told(nodes), ElementsAre("0 0 trains", "2 2 trains", "-1 7 spare", "-1 1 lost"));
  ASSERT_TRUE(nodes.has_value());
  EXPECT_EQ(nodes->rows.back().why, "the connection of its agent has ended");
  const auto back = LobbyNodes::Parse(nodes->Encode());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(Told(*back), Told(nodes));
  EXPECT_EQ(back->rows[0].node.host, "h0");
}

TEST_F(CoordinatorStateTest, ANodeThatIsDrainedHasLeftUntilItComesBack) {
  Take({.messages = {Join(7, "a7")}});
  Take({.messages = {{.kind = LobbyMessage::Kind::kDrain, .from = "a0", .target = "7"}}});
  Orders();
  Take({.gone = {"a7"}});  // Its agent ends.
  Orders();
  EXPECT_THAT(Told(coordinator_.TakeNodes()),
              ElementsAre("0 0 trains", "1 1 trains", "2 2 trains", "-1 7 left"));
  Take({.messages = {Join(7, "b7")}});
  EXPECT_THAT(Told(coordinator_.TakeNodes()),
              ElementsAre("0 0 trains", "1 1 trains", "2 2 trains", "-1 7 spare"));
}

TEST_F(CoordinatorStateTest, AHostIsDrainedByItsNameWithOrWithoutItsDomainOrByThatOfTheHostfile) {
  LobbyMessage join = Join(7, "a7");
  join.node.host = "N7.cluster.local";
  LobbyMessage named = Join(8, "a8");
  named.node.alias = "10.0.0.8";
  Take({.messages = {join, named}});
  Orders();
  const auto answer_to = [this](const char* target) {
    Take({.messages = {{.kind = LobbyMessage::Kind::kDrain, .from = "a0", .target = target}}});
    for (const LobbyOrder& order : Orders()) {
      if (order.kind == Kind::kAnswer) {
        return order;
      }
    }
    return LobbyOrder();
  };
  for (const char* const other : {"n", "n7.cluster", "n7.another.net", "10.0.0.7", "10.0", ""}) {
    EXPECT_THAT(answer_to(other).text, HasSubstr("no nodes of the job are")) << other;
  }
  EXPECT_THAT(answer_to("n").text, HasSubstr("node 7 (host N7.cluster.local), node 8 (host h8, "
                                             "10.0.0.8 in the hostfile)"));
  const LobbyOrder by_alias = answer_to("10.0.0.8");
  EXPECT_EQ(by_alias.code, 0) << by_alias.text;
  EXPECT_THAT(by_alias.names, ElementsAre("a0", "a8"));
  const LobbyOrder answer = answer_to("n7");
  EXPECT_EQ(answer.code, 0) << answer.text;
  EXPECT_THAT(answer.names, ElementsAre("a0", "a7"));
  EXPECT_THAT(answer_to("h1.cluster.local").names, ElementsAre("a0", "a1"));
}

TEST(CoordinatorState, ANodeThatComesToASuccessorBeforeTheOthersLearnsThatItIsASpare) {
  ElasticOptions options{.nodes_min = 2, .nodes_max = 2};
  options.is_successor = true;
  CoordinatorState coordinator(options, absl::Seconds(5), 0);
  coordinator.Take({.kind = LobbyMessage::Kind::kJoin, .from = "spare", .node = {7, "h7", 1}}, 0);
  EXPECT_TRUE(coordinator.TakeOrders().empty());
  const AttemptMemory memory{.attempt = 4, .nodes = {{0, "h0", 1}, {1, "h1", 1}}};
  for (const ElasticNode& node : memory.nodes) {
    LobbyMessage join{.kind = LobbyMessage::Kind::kJoin, .from = node.host, .node = node};
    join.memory = memory;
    coordinator.Take(join, 0);
  }
  const std::vector<LobbyOrder> orders = coordinator.TakeOrders();
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders[0].kind, LobbyOrder::Kind::kPark);
  EXPECT_EQ(orders[0].names, std::vector<std::string>{"spare"});
}

TEST(CoordinatorState, AnAttemptHasItsWholeWorldThoughANodeOfItIsLostInTheSameLook) {
  CoordinatorState coordinator({.nodes_min = 2, .nodes_max = 2, .restarts_max = 5},
                               absl::Seconds(5), 0);
  coordinator.Take({.messages = {Join(0, "a0"), Join(1, "a1")}, .gone = {"a1"}}, 0);
  std::vector<Kind> kinds;
  for (const LobbyOrder& order : coordinator.TakeOrders()) {
    kinds.push_back(order.kind);
    if (order.kind == Kind::kStart) {
      EXPECT_THAT(order.names, ElementsAre("a0", "a1"));
    }
  }
  EXPECT_THAT(kinds, ElementsAre(Kind::kDismiss, Kind::kStart, Kind::kStop));
}

// The former coordinator died when only a spare had read its order to begin attempt 5.
TEST(CoordinatorState, AnAttemptThatNoneOfItsNodesHasHeardOfIsNoSuccess) {
  ElasticOptions options{.nodes_min = 2, .nodes_max = 2, .restarts_max = 5};
  options.is_successor = true;
  CoordinatorState coordinator(options, absl::Minutes(1), 0);
  const auto join = [&coordinator](int number, AttemptMemory memory) {
    LobbyMessage message = Join(number, absl::StrCat("a", number));
    memory.nodes = {{0, "h0", 1}, {1, "h1", 1}};
    message.memory = std::move(memory);
    coordinator.Take({.messages = {message}}, kSecond);
  };
  join(7, {.attempt = 5});
  join(0, {.attempt = 4, .report = NodeReport{.attempt = 4, .code = 75}});
  join(1, {.attempt = 4, .report = NodeReport{.attempt = 4, .code = 75}});
  coordinator.Tick(10 * kSecond);
  int starts = 0;
  for (const LobbyOrder& order : coordinator.TakeOrders()) {
    EXPECT_NE(order.kind, Kind::kEnd) << order.code;
    if (order.kind == Kind::kStart) {
      ++starts;
      EXPECT_EQ(order.attempt, 6);
      EXPECT_THAT(order.names, ElementsAre("a0", "a7")) << "as they came";
    }
  }
  EXPECT_EQ(starts, 1);
}

// Two coordinators have begun attempts of the same number, the first one's with node 1, which was
// cut off when the second one began its own.
TEST(CoordinatorState, OfTwoAttemptsOfOneNumberThatOfTheLaterCoordinatorGoesOn) {
  for (const bool old_comes_first : {false, true}) {
    ElasticOptions options{.nodes_min = 2, .nodes_max = 2, .restarts_max = 5};
    options.is_successor = true;
    CoordinatorState coordinator(options, absl::Minutes(1), 0);
    const auto join = [&coordinator](int number, int64_t term, int other) {
      LobbyMessage message = Join(number, absl::StrCat("a", number));
      message.memory = AttemptMemory{.attempt = 4, .term = term};
      message.memory->nodes = {{0, "h0", 1}, {other, absl::StrCat("h", other), 1}};
      coordinator.Take({.messages = {message}}, kSecond);
    };
    if (old_comes_first) {
      join(1, /*term=*/10, 1);
    }
    join(0, /*term=*/20, 2);
    join(2, /*term=*/20, 2);
    if (!old_comes_first) {
      join(1, /*term=*/10, 1);
    }
    const std::vector<LobbyOrder> orders = coordinator.TakeOrders();
    ASSERT_EQ(orders.size(), 1U);
    EXPECT_EQ(orders[0].kind, Kind::kDismiss);
    EXPECT_THAT(orders[0].names, ElementsAre("a1"));
    EXPECT_THAT(Told(coordinator.TakeNodes()).front(), "0 0 trains");
  }
}

// The order by which the agent of node 0 begins an attempt: a coordinator of the term `term`, which
// follows another, gives it when node 1 has come with `join`.
LobbyOrder StartAt(int64_t term, LobbyMessage join) {
  ElasticOptions options{.nodes_min = 2, .nodes_max = 2, .restarts_max = 5};
  options.is_successor = true;
  CoordinatorState coordinator(options, absl::Minutes(1), 0);
  LobbyInbox inbox("a0", std::nullopt);
  join.from = "a1";
  join.node = {1, "h1", 1};
  coordinator.Take({.messages = {join}}, kSecond);
  coordinator.Take({.messages = {Join(0, "a0")}}, kSecond);
  LobbyMessage report{.kind = LobbyMessage::Kind::kReport, .from = "a1"};
  report.report = {.attempt = 0, .code = 75};
  coordinator.Take({.messages = {report}}, 2 * kSecond);
  coordinator.Tick(20 * kSecond);
  for (LobbyOrder& order : coordinator.TakeOrders()) {
    const auto read = LobbyOrder::Parse(order.Encode());
    EXPECT_TRUE(read.ok()) << read.status();
    order = read.value_or(LobbyOrder{});
    order.term = term;
    inbox.Take(std::move(order));
  }
  std::optional<LobbyOrder> next = inbox.Next();
  while (next.has_value() && next->kind == Kind::kPark) {  // Until the former attempt has ended.
    next = inbox.Next();
  }
  return next.value_or(LobbyOrder{.kind = Kind::kAnswer});
}

// --fresh is for the first attempt that node 0 begins, which need not have the number 0.
TEST(CoordinatorState, AnAttemptOfWhichOnlyAnotherNodeHeardDoesNotKeepTheJobFromBeginning) {
  LobbyInbox other("a1", std::nullopt);
  other.Take({.kind = Kind::kStart,
              .attempt = 0,
              .names = {"a0", "a1"},
              .nodes = {{0, "h0", 1}, {1, "h1", 1}},
              .term = 10});
  LobbyMessage join{.kind = LobbyMessage::Kind::kJoin};
  join.memory = other.memory();
  join.job_term = other.job_term();
  const LobbyOrder start = StartAt(/*term=*/20, join);
  ASSERT_EQ(start.kind, Kind::kStart);
  EXPECT_EQ(start.attempt, 1);
  // The agent of node 0 has followed the coordinator that died before it was heard.
  EXPECT_TRUE(BeginsJob(start, /*first_term=*/10));
  // One that was started when that coordinator had ended cannot know what the attempt has done.
  EXPECT_FALSE(BeginsJob(start, /*first_term=*/20));
}

TEST(CoordinatorState, ASpareKnowsThatTheJobHasBegun) {
  LobbyInbox spare("a1", std::nullopt);
  EXPECT_EQ(spare.job_term(), 0);
  LobbyOrder park{.kind = Kind::kPark, .names = {"a1"}, .term = 10};
  park.failures.job_term = 7;
  spare.Take(park);
  EXPECT_EQ(spare.job_term(), 7) << "a coordinator before that one began it";
  LobbyMessage join{.kind = LobbyMessage::Kind::kJoin};
  join.job_term = spare.job_term();
  const LobbyOrder start = StartAt(/*term=*/20, join);
  ASSERT_EQ(start.kind, Kind::kStart);
  EXPECT_EQ(start.attempt, 1) << "programs know the start of a job by attempt 0";
  EXPECT_FALSE(BeginsJob(start, /*first_term=*/20));
}

TEST(CoordinatorState, NodesThatKnowOfNoAttemptLetTheJobBegin) {
  const LobbyOrder start = StartAt(/*term=*/20, {.kind = LobbyMessage::Kind::kJoin});
  ASSERT_EQ(start.kind, Kind::kStart);
  EXPECT_EQ(start.attempt, 0);
  EXPECT_TRUE(BeginsJob(start, /*first_term=*/20));
}

TEST(CoordinatorState, AnUnknownAgentSpeaksForNoAwaitedNode) {
  ElasticOptions options{.nodes_min = 2, .nodes_max = 3};
  options.is_successor = true;
  CoordinatorState coordinator(options, absl::Seconds(5), 0);
  AttemptMemory memory{.attempt = 4, .nodes = {{0, "h0", 1}, {1, "h1", 1}, {2, "h2", 1}}};
  LobbyMessage join{.kind = LobbyMessage::Kind::kJoin, .from = "of 1", .node = memory.nodes[1]};
  join.memory = memory;
  coordinator.Take(join, 0);  // Nodes 0 and 2 are awaited.

  coordinator.Take({.kind = LobbyMessage::Kind::kLeave, .from = "unknown"}, kSecond);
  coordinator.Take(
      {.kind = LobbyMessage::Kind::kReport, .from = "unknown", .report = {.attempt = 4, .code = 1}},
      kSecond);
  coordinator.Tick(2 * kSecond);

  EXPECT_TRUE(coordinator.TakeOrders().empty());
}

}  // namespace
}  // namespace dtrain::launcher::coordinator_state_test
