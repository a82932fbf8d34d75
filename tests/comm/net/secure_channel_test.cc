#include "comm/net/secure_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/comm/net/tcp_proxy.h"

namespace dtrain::comm::secure_channel_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Deadline Soon() { return Deadline::After(absl::Seconds(30)); }

class SecureChannelTest : public ::testing::Test {
 protected:
  void Listen(uint64_t epoch = 5) {
    SecureListenerOptions options;
    options.epoch = epoch;
    listener_ = SecureListener::Create({"127.0.0.1", 0}, key_, options).value();
  }
  absl::StatusOr<std::unique_ptr<SecureChannel>> ConnectTo(const Endpoint& where,
                                                           uint64_t epoch = 5) {
    return SecureChannel::Connect(
        where, key_, {.epoch = epoch, .role = Hello::Role::kAgent, .id = 2, .name = "node-2"},
        Soon());
  }
  void Pair() {
    Listen();
    client_ = ConnectTo(listener_->endpoint()).value();
    server_ = listener_->Accept(Soon()).value();
  }
  const JobKey key_ = JobKey::Generate().value();
  std::unique_ptr<SecureListener> listener_;
  std::unique_ptr<SecureChannel> client_;
  std::unique_ptr<SecureChannel> server_;
};

TEST_F(SecureChannelTest, CarriesFramesAndTellsWhoSpeaks) {
  Pair();
  EXPECT_EQ(server_->peer_hello().role, Hello::Role::kAgent);
  EXPECT_EQ(server_->peer_hello().id, 2);
  EXPECT_EQ(server_->peer_hello().name, "node-2");
  EXPECT_EQ(client_->peer_hello().role, Hello::Role::kServer);
  ASSERT_TRUE(client_->Send(20, "up", Soon()).ok());
  ASSERT_TRUE(client_->Send(21, "", Soon()).ok());
  ASSERT_TRUE(server_->Send(22, "down", Soon()).ok());
  EXPECT_EQ(server_->Receive(Soon())->payload, "up");
  EXPECT_EQ(server_->Receive(Soon())->type, 21U);
  EXPECT_EQ(client_->Receive(Soon())->payload, "down");
}

TEST_F(SecureChannelTest, CarriesTheLargestFrameAndRefusesALargerOne) {
  Pair();
  std::string payload(kFramePayloadBytesMax, 'p');
  payload[12345678] = 'q';
  absl::Status sent;
  std::thread sender([&] { sent = client_->Send(20, payload, Soon()); });
  const auto frame = server_->Receive(Soon());
  sender.join();
  ASSERT_TRUE(sent.ok() && frame.ok()) << sent << frame.status();
  EXPECT_TRUE(frame->payload == payload);
  EXPECT_EQ(client_->Send(20, payload + "x", Soon()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SecureChannelTest, ManyThreadsSendWhileBothEndsReceive) {
  Pair();
  constexpr int kThreads = 4;
  constexpr int kFrames = 100;
  const auto send = [](SecureChannel& channel, char fill) {
    for (int i = 0; i < kFrames; ++i) {
      EXPECT_TRUE(channel.Send(20, std::string(static_cast<size_t>(i) * 97, fill), Soon()).ok());
    }
  };
  const auto receive = [](SecureChannel& channel) {
    size_t bytes = 0;
    for (int i = 0; i < kThreads * kFrames; ++i) {
      const auto frame = channel.Receive(Soon());
      ASSERT_TRUE(frame.ok()) << frame.status();
      bytes += frame->payload.size();
      const char first = frame->payload.empty() ? 'x' : frame->payload[0];
      // Frames are never mixed.
      EXPECT_EQ(frame->payload, std::string(frame->payload.size(), first));
    }
    EXPECT_EQ(bytes, size_t{kThreads * 97 * kFrames * (kFrames - 1) / 2});
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] { send(*client_, static_cast<char>('a' + t)); });
    threads.emplace_back([&, t] { send(*server_, static_cast<char>('A' + t)); });
  }
  threads.emplace_back([&] { receive(*client_); });
  receive(*server_);
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_F(SecureChannelTest, ReceiveThatTimesOutLosesNothing) {
  Pair();
  EXPECT_EQ(server_->Receive(Deadline::After(absl::Milliseconds(20))).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(client_->Send(20, "later", Soon()).ok());
  EXPECT_EQ(server_->Receive(Soon())->payload, "later");
}

TEST_F(SecureChannelTest, SendToAPeerThatDoesNotReadEndsAtItsDeadlineAndIsBounded) {
  Pair();
  const std::string payload(kFramePayloadBytesMax, 'p');
  absl::Status sent;
  for (int i = 0; i < 8 && !absl::IsResourceExhausted(sent); ++i) {
    sent = client_->Send(20, payload, Deadline::After(absl::Milliseconds(20)));
    EXPECT_TRUE(absl::IsDeadlineExceeded(sent) || absl::IsResourceExhausted(sent) || sent.ok());
  }
  EXPECT_EQ(sent.code(), absl::StatusCode::kResourceExhausted) << sent;
}

TEST_F(SecureChannelTest, CloseWakesBothEnds) {
  Pair();
  absl::Status here;
  std::thread waiter([&] { here = client_->Receive(Soon()).status(); });
  client_->Close();
  waiter.join();
  EXPECT_EQ(here.code(), absl::StatusCode::kUnavailable) << here;
  const absl::Status there = server_->Receive(Soon()).status();
  EXPECT_EQ(there.code(), absl::StatusCode::kUnavailable) << there;
  EXPECT_THAT(std::string(there.message()), HasSubstr(server_->name()));
}

TEST_F(SecureChannelTest, StaleAndFutureEpochsAreToldApart) {
  Listen(5);
  const absl::Status stale = ConnectTo(listener_->endpoint(), 4).status();
  EXPECT_EQ(stale.code(), absl::StatusCode::kAborted) << stale;
  EXPECT_THAT(std::string(stale.message()),
              AllOf(HasSubstr("at epoch 5"), HasSubstr("agent 2 (node-2) is of epoch 4"),
                    HasSubstr("must stop")));
  EXPECT_EQ(ConnectTo(listener_->endpoint(), 6).status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(ConnectTo(listener_->endpoint(), 5).ok());
}

TEST_F(SecureChannelTest, FlippedByteAnywhereEndsTheConnection) {
  Listen();
  int64_t total = 0;
  {
    TcpProxy proxy(listener_->endpoint());
    client_ = ConnectTo(proxy.endpoint()).value();
    server_ = listener_->Accept(Soon()).value();
    ASSERT_TRUE(client_->Send(20, "a secret order", Soon()).ok());
    ASSERT_EQ(server_->Receive(Soon())->payload, "a secret order");
    const std::string wire = proxy.FromClient();
    total = static_cast<int64_t>(wire.size());
    EXPECT_EQ(wire.find("secret"), std::string::npos);
  }
  // The last byte belongs to the frame; the byte before its record's tag too.
  for (const int64_t offset : {total - 1, total - 20}) {
    TcpProxy proxy(listener_->endpoint());
    proxy.FlipByteToServer(offset);
    client_ = ConnectTo(proxy.endpoint()).value();
    server_ = listener_->Accept(Soon()).value();
    ASSERT_TRUE(client_->Send(20, "a secret order", Soon()).ok());
    const auto frame = server_->Receive(Soon());
    EXPECT_EQ(frame.status().code(), absl::StatusCode::kDataLoss) << frame.status();
  }
}

TEST_F(SecureChannelTest, ServerWithoutTheKeyIsRefusedByTheClient) {
  const auto impostor =
      SecureListener::Create({"127.0.0.1", 0}, JobKey::Generate().value(), {}).value();
  const absl::Status refused = ConnectTo(impostor->endpoint()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("same job token"));
}

TEST(Hello, MalformedOnesAreRefused) {
  const std::string good = EncodeHello({.epoch = 1, .id = 7, .name = "n"});
  EXPECT_EQ(DecodeHello(good, 1)->id, 7);
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(DecodeHello(good.substr(0, length), 1).ok()) << length;
  }
  EXPECT_FALSE(DecodeHello(good + "x", 1).ok());
  std::string other_version = good;
  other_version[0] = 9;
  EXPECT_EQ(DecodeHello(other_version, 1).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace dtrain::comm::secure_channel_test
