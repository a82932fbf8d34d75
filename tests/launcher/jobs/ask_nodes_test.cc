// The agents of an attempt are asked through a real store, in which one of them does not answer.
#include "launcher/jobs/ask_nodes.h"

#include <poll.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/net/store_client.h"
#include "comm/net/store_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/nodes/store_peers.h"

namespace dtrain::launcher::ask_nodes_test {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kAtMost = absl::Seconds(30);
constexpr int kAttempt = 7;

// Answers for a node, as its supervisor does.
class Supervising {
 public:
  Supervising(StorePeers& peers, std::string text)
      : thread_([this, &peers, text = std::move(text)] {
          while (!stop_) {
            pollfd entry{peers.poll_fd(), POLLIN, 0};
            poll(&entry, 1, 10);
            for (const Order& order : peers.Take()) {
              if (order.kind == Order::Kind::kAsk) {
                peers.Answer(order, text);
              } else {
                signal_ = order.signal;
              }
            }
          }
        }) {}
  ~Supervising() {
    stop_ = true;
    thread_.join();
  }
  // The signal of the last order that was no question; 0 if none comes in time.
  int AwaitSignal() const {
    for (const Deadline deadline = Deadline::After(kAtMost); !deadline.Expired() && signal_ == 0;) {
      Clock::Real().Sleep(absl::Milliseconds(1));
    }
    return signal_;
  }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int> signal_{0};
  std::thread thread_;
};

class AskNodesTest : public ::testing::Test {
 protected:
  std::unique_ptr<comm::StoreClient> Connect(int node) const {
    return *comm::StoreClient::Connect(
        server_->endpoint(), key_,
        {.epoch = kAttempt, .role = comm::Hello::Role::kAgent, .id = node, .name = "agent"},
        Deadline::After(kAtMost));
  }
  std::unique_ptr<StorePeers> Join(int node) const {
    return *StorePeers::Create(Connect(node), {.node = node, .nodes = 2});
  }
  AskedAttempt Attempt() const {
    return {
        .number = kAttempt,
        .store = server_->endpoint(),
        .nodes = {{.number = 0, .host = "a", .ranks = 1}, {.number = 1, .host = "", .ranks = 2}}};
  }

  const comm::JobKey key_ = *comm::JobKey::Generate();
  const std::unique_ptr<comm::StoreServer> server_ =
      *comm::StoreServer::Create("127.0.0.1", 0, key_, kAttempt);
};

TEST_F(AskNodesTest, AllAnswerAndTheQuestionIsGone) {
  const auto node_0 = Join(0);
  const auto node_1 = Join(1);
  Supervising first(*node_0, "zero");
  Supervising second(*node_1, "one");
  const auto tool = Connect(9);
  for (int times = 0; times < 2; ++times) {
    const JobNodes job = AskNodes(Attempt(), key_);
    ASSERT_EQ(job.nodes.size(), 2U);
    EXPECT_EQ(job.note, "");
    EXPECT_EQ(job.attempt, kAttempt);
    EXPECT_EQ(job.nodes[0].text, "zero");
    EXPECT_EQ(job.nodes[1].text, "one");
  }
  const std::vector<std::string> orders = {comm::ListItemKey(kOrderList, 1),
                                           comm::ListItemKey(kOrderList, 2)};
  EXPECT_EQ(*tool->Check(orders, Deadline::After(kAtMost)), std::vector<bool>(2, false));
  Order stop;
  stop.kind = Order::Kind::kStop;
  stop.signal = 15;
  node_0->Publish(stop);
  EXPECT_EQ(second.AwaitSignal(), 15) << "orders go on behind a question";
}

TEST_F(AskNodesTest, ANodeThatDoesNotAnswerIsNamedWithItsHost) {
  const auto node_0 = Join(0);
  const auto node_1 = Join(1);  // Has nobody who answers.
  Supervising first(*node_0, "zero");
  const auto tool = Connect(9);
  ASSERT_TRUE(tool->Set(HostKey(1), "b", Deadline::After(kAtMost)).ok());
  const JobNodes job = AskNodes(Attempt(), key_);
  ASSERT_EQ(job.nodes.size(), 2U);
  EXPECT_EQ(job.nodes[0].text, "zero");
  EXPECT_FALSE(job.nodes[1].text.has_value());
  EXPECT_EQ(job.nodes[1].node.host, "b");
  EXPECT_EQ(job.nodes[1].node.ranks, 2);
  EXPECT_EQ(job.note, "");
}

TEST_F(AskNodesTest, WithAnotherTokenNobodyAnswers) {
  const JobNodes job = AskNodes(Attempt(), *comm::JobKey::Generate());
  ASSERT_EQ(job.nodes.size(), 2U);
  EXPECT_FALSE(job.nodes[0].text.has_value());
  EXPECT_THAT(job.note, HasSubstr("this host cannot ask the nodes: "));
}

}  // namespace
}  // namespace dtrain::launcher::ask_nodes_test
