// An agent that dies while it tells the others something leaves no gap in the list of orders, for
// which all would wait: an order is one call of the store.
#include <atomic>
#include <utility>

#include "base/deadline.h"
#include "comm/net/store_server.h"
#include "gtest/gtest.h"
#include "launcher/nodes/store_peers.h"

namespace dtrain::launcher::store_orders_test {
namespace {

TEST(StoreOrders, AnOrderIsOneCallOfTheStore) {
  constexpr int kOrders = 50;
  std::atomic<int> calls{0};
  comm::StoreServerOptions serving;
  serving.heard = [&calls](const comm::Hello&) { ++calls; };
  const comm::JobKey key = *comm::JobKey::Generate();
  const auto server = *comm::StoreServer::Create("127.0.0.1", 0, key, 0, serving);
  auto client = comm::StoreClient::Connect(
      server->endpoint(), key,
      {.epoch = 0, .role = comm::Hello::Role::kAgent, .id = 1, .name = "agent"},
      Deadline::After(absl::Seconds(30)));
  ASSERT_TRUE(client.ok()) << client.status();
  const auto peers = *StorePeers::Create(
      *std::move(client), {.node = 1, .nodes = 2, .beat_interval = absl::Minutes(5)});
  for (int i = 0; i < kOrders; ++i) {
    Order order;
    order.kind = Order::Kind::kFail;
    order.end.exit_code = 64;
    peers->Publish(order);
  }
  // Its own thread waits for the first order, and behind each one for the next.
  EXPECT_LE(calls, 2 * kOrders + 1);
  EXPECT_GE(calls, kOrders);
}

}  // namespace
}  // namespace dtrain::launcher::store_orders_test
