// Agents that meet in a store, from the view of node 0's supervisor: a silent agent is lost, one
// that said goodbye is not.
#include "launcher/nodes/store_peers.h"

#include <poll.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/net/store_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::store_peers_test {
namespace {

using ::testing::IsEmpty;

constexpr absl::Duration kAtMost = absl::Seconds(30);
constexpr int kAtMostMs = 30'000;

class StorePeersTest : public ::testing::Test {
 protected:
  // Connects as the agent of `node`.
  std::unique_ptr<comm::StoreClient> Connect(int node, const std::string& name = "agent") {
    auto client = comm::StoreClient::Connect(
        server_->endpoint(), key_,
        {.epoch = 0, .role = comm::Hello::Role::kAgent, .id = node, .name = name},
        Deadline::After(absl::Seconds(30)));
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  // Connects as the one agent of `node`, which it claims.
  std::unique_ptr<comm::StoreClient> Claim(int node) {
    const std::string name = absl::StrCat("node ", node, " #1");
    auto client = Connect(node, name);
    EXPECT_TRUE(client->Set(AgentNameKey(node), name, Deadline::After(kAtMost)).ok());
    return client;
  }
  std::unique_ptr<StorePeers> Join(int node, absl::Duration silence) {
    auto peers = StorePeers::Create(Claim(node), {.node = node,
                                                  .nodes = 2,
                                                  .beat_interval = absl::Milliseconds(20),
                                                  .beat_timeout = silence,
                                                  .gone = node == 0 ? gone_ : nullptr});
    EXPECT_TRUE(peers.ok()) << peers.status();
    return *std::move(peers);
  }
  // Waits for orders of the peers, and gives whether any came in time.
  static bool Wakes(const Peers& peers, int timeout_ms) {
    pollfd entry{peers.poll_fd(), POLLIN, 0};
    return poll(&entry, 1, timeout_ms) == 1;
  }

  static comm::StoreServerOptions Telling(const std::shared_ptr<GoneAgents>& gone) {
    comm::StoreServerOptions options;
    options.gone = [gone](const comm::Hello& client) { gone->Add(client); };
    return options;
  }

  const comm::JobKey key_ = *comm::JobKey::Generate();
  const std::shared_ptr<GoneAgents> gone_ = std::make_shared<GoneAgents>();
  const std::unique_ptr<comm::StoreServer> server_ =
      *comm::StoreServer::Create("127.0.0.1", 0, key_, 0, Telling(gone_));
};

TEST_F(StorePeersTest, AnAgentThatIsSilentIsLost) {
  // Connected, but sends no beats, like an agent that hangs or is stopped.
  const auto node_1 = Connect(1);
  const auto node_0 = Join(0, absl::Milliseconds(500));
  ASSERT_TRUE(Wakes(*node_0, kAtMostMs));
  const absl::Status health = node_0->health();
  EXPECT_EQ(health.code(), absl::StatusCode::kUnavailable) << "exit code 75: a restart helps";
  EXPECT_EQ(std::string(health.message()), "node 1 is lost: its agent has been silent for 500ms");
}

// It may have been killed. Another agent that took itself for the same node was refused.
TEST_F(StorePeersTest, AnAgentWhoseConnectionEndsWithoutAGoodbyeIsLostBeforeItIsSilent) {
  auto node_1 = Claim(1);
  const auto node_0 = Join(0, absl::Hours(1));
  Connect(1, "node 1 #2").reset();
  EXPECT_FALSE(Wakes(*node_0, 500)) << node_0->health();
  node_1.reset();
  ASSERT_TRUE(Wakes(*node_0, kAtMostMs));
  EXPECT_EQ(node_0->health().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(std::string(node_0->health().message()),
            "node 1 is lost: the connection of its agent has ended");
}

// As when node 0 was stopped by a signal, or its virtual machine was suspended: it has looked at
// nothing for longer than others may be silent.
TEST_F(StorePeersTest, TimeInWhichNodeZeroDidNotLookIsNoSilenceOfTheOthers) {
  FakeClock clock;
  const auto node_1 = Connect(1);
  const auto node_0 = *StorePeers::Create(Connect(0), {.node = 0,
                                                       .nodes = 2,
                                                       .beat_interval = absl::Milliseconds(20),
                                                       .beat_timeout = absl::Seconds(1),
                                                       .clock = clock});
  const auto looks = [&node_1] {
    return node_1->Add("launch/beat/0", 0, Deadline::After(kAtMost)).value_or(-1);
  };
  // A look is over when the next one has begun.
  const auto after_looks = [&](absl::Duration each, int64_t count) {
    const Deadline deadline = Deadline::After(kAtMost);
    const int64_t until = looks() + count;
    while (node_0->health().ok() && looks() < until && !deadline.Expired()) {
      const int64_t before = looks();  // No look follows before the clock goes on.
      clock.Advance(each);
      while (node_0->health().ok() && looks() == before && !deadline.Expired()) {
        Clock::Real().Sleep(absl::Milliseconds(1));
      }
    }
    return node_0->health();
  };
  EXPECT_TRUE(after_looks(absl::Minutes(10), 3).ok()) << node_0->health();
  EXPECT_EQ(after_looks(absl::Milliseconds(40), 1000).code(), absl::StatusCode::kUnavailable)
      << "it is silent while node 0 looks";
}

// A busy machine may hold the beats up for longer than a short silence.
TEST_F(StorePeersTest, AnAgentThatBeatsIsNotLostAndOneThatSaidGoodbyeNeitherIs) {
  constexpr absl::Duration kSilence = absl::Seconds(2);
  constexpr int kLongerMs = 2200;
  const auto node_0 = Join(0, kSilence);
  {
    const auto node_1 = Join(1, kSilence);
    EXPECT_FALSE(Wakes(*node_0, kLongerMs)) << node_0->health();
  }
  EXPECT_FALSE(Wakes(*node_0, kLongerMs)) << node_0->health();
  EXPECT_TRUE(node_0->health().ok()) << node_0->health();
}

TEST_F(StorePeersTest, WhatANodeSharesReachesNodeZeroAsItIsLast) {
  const auto node_0 = Join(0, kAtMost);
  const auto node_1 = Join(1, kAtMost);
  for (const char* const summary : {"first", "second"}) {
    node_1->Share(summary);
    std::string seen;
    while (seen != summary && Wakes(*node_0, kAtMostMs)) {
      node_0->Take();  // Ends the wake.
      for (const auto& [node, text] : node_0->TakeShared()) {
        EXPECT_EQ(node, 1);
        seen = text;
      }
    }
    EXPECT_EQ(seen, summary);
  }
  EXPECT_THAT(node_1->TakeShared(), IsEmpty());
}

TEST_F(StorePeersTest, WhatANodeSharesAtOnceIsThereWithTheOrderToLookAndWaitsForNoBeat) {
  const auto join = [this](int node) {
    return *StorePeers::Create(
        Claim(node),
        {.node = node, .nodes = 2, .beat_interval = absl::Hours(1), .beat_timeout = kAtMost});
  };
  const auto node_0 = join(0);
  const auto node_1 = join(1);
  node_1->Share("for the next beat");
  node_1->ShareAtOnce("a rank is over its limit");
  ASSERT_TRUE(Wakes(*node_0, kAtMostMs));
  std::vector<Order> orders;
  for (const Deadline deadline = Deadline::After(kAtMost);
       orders.empty() && !deadline.Expired();) {  // The text comes ahead of the order.
    orders = node_0->Take();
  }
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders[0].kind, Order::Kind::kLook);
  EXPECT_EQ(orders[0].node, 1);
  EXPECT_EQ(node_0->TakeShared(),
            (std::vector<std::pair<int, std::string>>{{1, "a rank is over its limit"}}));
  EXPECT_THAT(node_1->Take(), IsEmpty());
}

TEST_F(StorePeersTest, OrdersReachTheOthersInOrderAndNotTheirSender) {
  const auto node_0 = Join(0, kAtMost);
  const auto node_1 = Join(1, kAtMost);
  for (const int signal : {SIGTERM, SIGINT}) {
    Order order;
    order.kind = Order::Kind::kStop;
    order.signal = signal;
    node_1->Publish(order);
  }
  std::vector<int> signals;
  while (signals.size() < 2 && Wakes(*node_0, kAtMostMs)) {
    for (const Order& order : node_0->Take()) {
      EXPECT_EQ(order.node, 1);
      signals.push_back(order.signal);
    }
  }
  EXPECT_THAT(signals, ::testing::ElementsAre(SIGTERM, SIGINT));
  EXPECT_THAT(node_1->Take(), IsEmpty());
}

}  // namespace
}  // namespace dtrain::launcher::store_peers_test
