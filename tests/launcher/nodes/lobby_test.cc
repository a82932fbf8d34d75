// Agents and the coordinator of an elastic job in one process, over real connections.
#include "launcher/nodes/lobby.h"

#include <poll.h>

#include "base/clock.h"
#include "base/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/nodes/coordinator.h"

namespace dtrain::launcher::lobby_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(30);

class LobbyTest : public ::testing::Test {
 protected:
  std::unique_ptr<LobbyAgent> Join(int number) {
    auto agent = LobbyAgent::Join({coordinator_->endpoint(), key_, {number, "h", 1}, kLong},
                                  [] { return 0; });
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

  const comm::JobKey key_ = *comm::JobKey::Generate();
  const std::unique_ptr<Coordinator> coordinator_ = *Coordinator::Start(
      {.endpoint = {"127.0.0.1", 0}, .key = key_, .job = {.nodes_min = 1, .nodes_max = 2}});
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

TEST_F(LobbyTest, AClosedConnectionEndsTheAttemptWithinASecond) {
  const auto first = Join(0);
  auto second = Join(1);
  Next(*first);
  const int64_t began = Clock::Real().MonotonicNanos();
  second.reset();
  const auto stop = AwaitStop(*first, 0);
  EXPECT_LT(Clock::Real().MonotonicNanos() - began, 1'000'000'000);
  ASSERT_TRUE(stop.has_value());
  EXPECT_FALSE(stop->save);
  EXPECT_EQ(stop->text, "node 1 (host h) is lost: the connection of its agent has ended");
}

TEST_F(LobbyTest, DrainsAreAnsweredByNameAndThenCarriedOut) {
  const auto first = Join(0);
  const auto second = Join(1);
  Next(*first);
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
  EXPECT_TRUE(AwaitStop(*second, 0)->save);
  for (LobbyAgent* agent : {first.get(), second.get()}) {
    const NodeReport report{.code = 143, .stop_signal = 15};
    EXPECT_TRUE(agent->Post({.kind = LobbyMessage::Kind::kReport, .report = report}).ok());
  }
  EXPECT_TRUE(first->AwaitDismissal(second->name(), kLong).ok());
}

TEST(LobbyMessages, AreReadAsTheyWereWritten) {
  LobbyMessage message{.kind = LobbyMessage::Kind::kReport, .from = "node 1 \"x\"\n"};
  message.node = {3, "host", 8};
  message.report = {.attempt = 2, .code = 139, .stop_signal = 15, .durable_step = 7};
  message.report.cause = RankEnd{.rank = 5, .signal = 11};
  const auto read = LobbyMessage::Parse(message.Encode());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->Encode(), message.Encode());
  EXPECT_EQ(read->report.cause->signal, 11);
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
