// Agents and the coordinator of an elastic job in one process, over real connections.
#include "launcher/nodes/lobby.h"

#include <poll.h>

#include <algorithm>

#include "base/clock.h"
#include "base/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/nodes/coordinator.h"
#include "launcher/nodes/coordinator_process.h"
#include "tests/testing/shortest.h"

namespace dtrain::launcher::lobby_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLong = absl::Seconds(30);

class LobbyTest : public ::testing::Test {
 protected:
  std::unique_ptr<LobbyAgent> Join(int number) { return Join(number, coordinator_->endpoint()); }
  std::unique_ptr<LobbyAgent> Join(int number, const comm::Endpoint& endpoint) {
    auto agent = LobbyAgent::Join({endpoint, key_, {number, "h", 1}, kLong}, [] { return 0; });
    EXPECT_TRUE(agent.ok()) << agent.status();
    return *std::move(agent);
  }
  static LobbyOrder Next(LobbyAgent& agent) {
    const auto order = agent.Next(kLong);
    EXPECT_TRUE(order.ok() && order->has_value()) << order.status();
    return order.ok() && order->has_value() ? **order : LobbyOrder{};
  }
  static std::optional<LobbyOrder> AwaitStop(LobbyAgent& agent, int attempt) {
    std::optional<LobbyOrder> stop;
    for (const Deadline deadline = Deadline::After(kLong); !stop && !deadline.Expired();) {
      pollfd entry{agent.poll_fd(), POLLIN, 0};
      poll(&entry, 1, deadline.PollTimeoutMs());
      stop = agent.TakeStop(attempt);
    }
    return stop;
  }

  // The agent's health, once that is not OK.
  static absl::Status AwaitIllness(const LobbyAgent& agent) {
    for (const Deadline deadline = Deadline::After(kLong);
         agent.health().ok() && !deadline.Expired();) {
      pollfd entry{agent.poll_fd(), POLLIN, 0};
      poll(&entry, 1, deadline.PollTimeoutMs());
    }
    return agent.health();
  }

  std::unique_ptr<Coordinator> Start() const {
    return *Coordinator::Start({.endpoint = {"127.0.0.1", 0},
                                .key = key_,
                                .job = {.nodes_min = 1, .nodes_max = 2},
                                .silence = kLong,  // A busy machine's agents may be late.
                                .farewell = absl::ZeroDuration()});
  }

  const comm::JobKey key_ = *comm::JobKey::Generate();
  FakeClock clock_;  // Outlives the coordinator to which a test gives it.
  std::unique_ptr<Coordinator> coordinator_ = Start();
};

TEST_F(LobbyTest, StartsTheNodesThatHaveMetAndParksTheRest) {
  const auto second = Join(5);
  const auto first = Join(0);
  for (LobbyAgent* agent : {first.get(), second.get()}) {
    const LobbyOrder start = Next(*agent);
    EXPECT_EQ(start.kind, LobbyOrder::Kind::kStart);
    EXPECT_THAT(start.names, ElementsAre(first->name(), second->name()));
    EXPECT_EQ(start.nodes.at(1).number, 5);
  }
  const auto spare = Join(1);
  EXPECT_EQ(Next(*spare).kind, LobbyOrder::Kind::kPark);
  const LobbyOrder refused = Next(*Join(5));
  EXPECT_EQ(refused.kind, LobbyOrder::Kind::kDismiss);
  EXPECT_EQ(refused.code, 64);
}

TEST_F(LobbyTest, ASpareLearnsThatAProcessOfTheProgramMayBeKeptInReserve) {
  const auto first = Join(0);
  const auto spare = Join(2);
  EXPECT_FALSE(spare->MayReserve());
  first->TellReserve();
  EXPECT_TRUE(spare->MayReserve());
}

TEST_F(LobbyTest, AClosedConnectionEndsTheAttemptWithinASecond) {
  const absl::Duration shortest = testing::ShortestOf(10, absl::Seconds(1), [&] {
    coordinator_ = Start();
    const auto first = Join(0);
    auto second = Join(1);
    Next(*first);
    const int64_t began = Clock::Real().MonotonicNanos();
    second.reset();
    const auto stop = AwaitStop(*first, 0);
    const absl::Duration took = absl::Nanoseconds(Clock::Real().MonotonicNanos() - began);
    EXPECT_TRUE(stop.has_value());
    if (stop.has_value()) {
      EXPECT_FALSE(stop->save);
      EXPECT_EQ(stop->text, "node 1 (host h) is lost: the connection of its agent has ended");
    }
    return took;
  });
  EXPECT_LT(shortest, absl::Seconds(1));
}

TEST_F(LobbyTest, ACoordinatorWhoseOwnAgentIsGoneDecidesNothingBeforeItsOwnEnd) {
  auto first = Join(0);
  const auto second = Join(1);
  Next(*second);
  first.reset();
  const auto order = second->Next(absl::Milliseconds(500));
  EXPECT_TRUE(order.ok() && !order->has_value()) << order.status();
  EXPECT_EQ(second->TakeStop(0), std::nullopt);
  coordinator_.reset();  // As a process that its agent's death ends.
  EXPECT_EQ(second->Next(kLong).status().message(),
            "node 0, which has the job's coordinator, is lost");
}

// As when the coordinator was stopped by a signal: what an agent has sent meanwhile is read late.
TEST_F(LobbyTest, TimeInWhichTheCoordinatorDidNotRunIsNotCountedAgainstAgents) {
  coordinator_ = *Coordinator::Start({.endpoint = {"127.0.0.1", 0},
                                      .key = key_,
                                      .job = {.nodes_min = 1, .nodes_max = 2},
                                      .farewell = absl::ZeroDuration(),
                                      .clock = clock_});
  const auto first = Join(0);
  const auto second = Join(1);
  Next(*first);
  EXPECT_EQ(Next(*second).kind, LobbyOrder::Kind::kStart);
  const auto report = [](LobbyAgent& agent) {
    const NodeReport failed{.code = 17};
    return agent.Post({.kind = LobbyMessage::Kind::kReport, .report = failed}).ok();
  };
  const auto await_look = [&first] {  // A question is answered behind the look that finds it.
    EXPECT_TRUE(first->Post({.kind = LobbyMessage::Kind::kDrain, .target = "nowhere"}).ok());
    return first->AwaitAnswer(kLong).ok();
  };
  ASSERT_TRUE(report(*first));
  ASSERT_TRUE(await_look());
  clock_.Advance(absl::Minutes(10));  // Much longer than the others may take to report.
  ASSERT_TRUE(await_look());
  ASSERT_TRUE(report(*second));
  const LobbyOrder end = Next(*second);
  EXPECT_EQ(end.kind, LobbyOrder::Kind::kEnd) << end.text;
  EXPECT_EQ(end.code, 17);
}

TEST_F(LobbyTest, DrainsAreAnsweredByNameAndThenCarriedOut) {
  const auto first = Join(0);
  const auto second = Join(1);
  Next(*first);
  Next(*second);
  const auto ask = [&](const std::string& target) {
    EXPECT_TRUE(first->Post({.kind = LobbyMessage::Kind::kDrain, .target = target}).ok());
    return *first->AwaitAnswer(kLong);
  };
  EXPECT_THAT(ask("nowhere").text,
              HasSubstr("no nodes of the job are \"nowhere\"; its nodes: node"));
  EXPECT_THAT(ask("h").text, HasSubstr("several nodes of the job are \"h\""));
  const LobbyOrder answer = ask("1");
  EXPECT_EQ(answer.code, 0);
  EXPECT_THAT(answer.names, ElementsAre(first->name(), second->name()));
  const auto drained = AwaitStop(*second, 0);
  ASSERT_TRUE(drained.has_value());
  EXPECT_TRUE(drained->save);
  EXPECT_TRUE(drained->job_goes_on);
  for (LobbyAgent* agent : {first.get(), second.get()}) {
    const NodeReport report{.code = 143, .stop_signal = 15};
    EXPECT_TRUE(agent->Post({.kind = LobbyMessage::Kind::kReport, .report = report}).ok());
  }
  EXPECT_TRUE(first->AwaitDismissal(second->name(), kLong).ok());
}

CoordinatorOptions WithPort(const Coordinator& coordinator, const comm::JobKey& key) {
  CoordinatorOptions options{.endpoint = coordinator.endpoint(), .key = key};
  options.job = {.nodes_min = 1, .nodes_max = 2, .is_successor = true};
  options.silence = kLong;
  options.farewell = absl::ZeroDuration();
  return options;
}

TEST_F(LobbyTest, ASuccessorOfTheCoordinatorLeadsTheAttemptThatRuns) {
  const auto first = Join(0);
  const auto second = Join(1);
  Next(*first);
  Next(*second);
  const CoordinatorOptions options = WithPort(*coordinator_, key_);
  const int64_t term = first->memory().term;
  coordinator_.reset();
  const auto successor = *Coordinator::Start(options);
  const auto third = Join(5, options.endpoint);
  EXPECT_EQ(Next(*third).kind, LobbyOrder::Kind::kPark) << "attempt 0 has two nodes";
  LobbyOrder answer{.code = 64};  // Until both have come back.
  for (const Deadline deadline = Deadline::After(kLong); answer.code != 0 && !deadline.Expired();) {
    if (first->Post({.kind = LobbyMessage::Kind::kDrain, .target = "1"}).ok()) {
      answer = *first->AwaitAnswer(kLong);
    }
  }
  ASSERT_EQ(answer.code, 0) << answer.text;
  EXPECT_EQ(answer.names.at(1), second->name());
  for (LobbyAgent* agent : {first.get(), second.get()}) {
    const auto stop = AwaitStop(*agent, 0);
    ASSERT_TRUE(stop.has_value());
    EXPECT_TRUE(stop->save) << stop->text;
    EXPECT_GT(agent->memory().term, term);
    const NodeReport report{.code = 143, .stop_signal = 15};
    EXPECT_TRUE(agent->Post({.kind = LobbyMessage::Kind::kReport, .report = report}).ok());
  }
  const LobbyOrder start = Next(*third);
  EXPECT_EQ(start.attempt, 1);
  EXPECT_GT(start.term, term);
  EXPECT_EQ(start.term, third->memory().attempt->term) << "by which a later one knows its age";
  EXPECT_THAT(start.names, ElementsAre(first->name(), third->name()));
}

TEST_F(LobbyTest, AReportThatNoCoordinatorHasReadReachesItsSuccessor) {
  const auto first = Join(0);
  const auto second = Join(1);
  Next(*first);
  Next(*second);
  const CoordinatorOptions options = WithPort(*coordinator_, key_);
  coordinator_.reset();
  EXPECT_TRUE(absl::IsUnavailable(second->Next(kLong).status())) << "it has no ranks that go on";
  for (LobbyAgent* agent : {first.get(), second.get()}) {
    EXPECT_TRUE(agent->Post({.kind = LobbyMessage::Kind::kReport, .report = {.code = 0}}).ok());
  }
  const auto successor = *Coordinator::Start(options);
  for (LobbyAgent* agent : {first.get(), second.get()}) {
    const auto end = AwaitStop(*agent, 0);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->kind, LobbyOrder::Kind::kEnd);
    EXPECT_EQ(end->code, 0);
  }
}

TEST_F(LobbyTest, ACoordinatorThatDoesNotComeBackIsNamedWithTheTime) {
  LobbyJoin join{coordinator_->endpoint(), key_, {0, "h", 1}, kLong};
  join.patience = absl::Milliseconds(300);
  const auto agent = *LobbyAgent::Join(join, [] { return 0; });
  coordinator_.reset();
  EXPECT_EQ(AwaitIllness(*agent).message(),
            "node 0, which has the job's coordinator, is lost and has not come back within 300ms");
}

TEST_F(LobbyTest, AnOlderCoordinatorThanTheLastOneIsNotFollowed) {
  LobbyJoin join{coordinator_->endpoint(), key_, {0, "h", 1}, kLong};
  join.memory.term = absl::ToUnixMicros(absl::Now() + absl::Hours(1));
  const auto agent = LobbyAgent::Join(join, [] { return 0; });
  EXPECT_TRUE(absl::IsFailedPrecondition(agent.status())) << agent.status();
  EXPECT_THAT(std::string(agent.status().message()), HasSubstr("was started before the one"));
  EXPECT_THAT(std::string(agent.status().message()), HasSubstr("set the clock"));
}

// Another host has become node 0, and its clock is behind.
TEST_F(LobbyTest, ASuccessorWhoseClockIsBehindIsNotFollowedAndTheMessageSaysByHowMuch) {
  const auto agent = Join(1);
  clock_.Advance(absl::Now() - absl::Minutes(90) - clock_.WallTime());
  const comm::Endpoint endpoint = coordinator_->endpoint();
  coordinator_.reset();
  const auto successor = *Coordinator::Start({.endpoint = endpoint,
                                              .key = key_,
                                              .job = {.nodes_min = 1, .nodes_max = 2},
                                              .silence = kLong,
                                              .farewell = absl::ZeroDuration(),
                                              .clock = clock_});
  const std::string why(AwaitIllness(*agent).message());
  EXPECT_THAT(why, HasSubstr("which has the job's coordinator, is lost: the coordinator at "));
  EXPECT_THAT(why, HasSubstr(endpoint.ToString()));
  EXPECT_THAT(why, HasSubstr("was started before the one that this node has followed (1h2"));
  EXPECT_THAT(why, HasSubstr("set the clock if node 0 is on another host than before"));
  EXPECT_THAT(why, Not(HasSubstr("\n")));
}

TEST_F(LobbyTest, ACoordinatorOfAnotherVersionIsNotFollowed) {
  const auto store = comm::StoreClient::Connect(
      coordinator_->endpoint(), key_,
      {.epoch = kLobbyEpoch, .role = comm::Hello::Role::kAgent, .id = 7, .name = "another"},
      Deadline::After(kLong));
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->Set(kLobbyVersionKey, "9.9.9", Deadline::After(kLong)).ok());
  const LobbyJoin join{coordinator_->endpoint(), key_, {1, "h", 1}, kLong};
  const auto agent = LobbyAgent::Join(join, [] { return 0; });
  EXPECT_TRUE(absl::IsFailedPrecondition(agent.status())) << agent.status();
  EXPECT_THAT(std::string(agent.status().message()),
              HasSubstr("node 0 has dtrain 9.9.9, this node "));
}

TEST(CoordinatorOptionsText, IsReadAsItWasWritten) {
  CoordinatorOptions options{.endpoint = {"10.0.0.1", 29400}, .key = *comm::JobKey::Generate()};
  options.job = {.nodes_min = 2, .nodes_max = 7, .batch = {64, 2}, .restarts_max = 3};
  options.job.last_call = absl::Milliseconds(1500);
  options.job.is_successor = true;
  const auto read = ParseCoordinatorOptions(EncodeCoordinatorOptions(options));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->key == options.key);
  EXPECT_EQ(EncodeCoordinatorOptions(*read), EncodeCoordinatorOptions(options));
  EXPECT_EQ(read->job.last_call, absl::Milliseconds(1500));
  for (const char* text : {"", "{}", "[]", "{\"host\":7}"}) {
    EXPECT_FALSE(ParseCoordinatorOptions(text).ok()) << text;
  }
}

TEST(LobbyMessages, AreReadAsTheyWereWritten) {
  LobbyMessage message{.kind = LobbyMessage::Kind::kReport, .from = "node 1 \"x\"\n"};
  message.node = {3, "host", 8, "alias"};
  message.report = {
      .attempt = 2, .code = 139, .stop_signal = 15, .durable_step = 7, .cannot_start = true};
  message.report.cause = RankEnd{.rank = 5, .signal = 11};
  message.memory = AttemptMemory{
      .attempt = 2, .term = int64_t{1} << 50, .nodes = {message.node}, .report = message.report};
  message.memory->failures = {.durable_step = 6, .last = "x", .alike = 1, .restarts_used = 2};
  const auto read = LobbyMessage::Parse(message.Encode());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->Encode(), message.Encode());
  EXPECT_EQ(read->node.alias, "alias");
  EXPECT_EQ(read->report.cause->signal, 11);
  EXPECT_TRUE(read->report.cannot_start);
  EXPECT_EQ(read->memory->term, int64_t{1} << 50);
  EXPECT_EQ(read->memory->failures.durable_step, 6);
  EXPECT_EQ(read->memory->report->code, 139);
  LobbyOrder order{.kind = LobbyOrder::Kind::kStart, .attempt = 4, .names = {"a", "b"}};
  order.nodes = {message.node};
  EXPECT_EQ(LobbyOrder::Parse(order.Encode())->Encode(), order.Encode());
  for (const char* text : {"", "{}", "[]", "{\"kind\":\"join\"}", "{\"kind\":7}"}) {
    EXPECT_FALSE(LobbyMessage::Parse(text).ok()) << text;
    EXPECT_FALSE(LobbyOrder::Parse(text).ok()) << text;
  }
}

}  // namespace
}  // namespace dtrain::launcher::lobby_test
