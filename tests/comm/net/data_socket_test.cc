#include "comm/net/data_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/comm/net/tcp_proxy.h"

namespace dtrain::comm::data_socket_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Deadline Soon() { return Deadline::After(absl::Seconds(30)); }

std::vector<std::byte> Pattern(size_t bytes, unsigned seed = 1) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<std::byte>((i * 2654435761U + seed) >> 13);
  }
  return data;
}

class DataSocketTest : public ::testing::Test {
 protected:
  void Listen(DataSocketOptions socket = {}, GateOptions gate = {}) {
    DataListener::Options options;
    options.epoch = 3;
    options.self = 0;
    options.world_size = 4;
    options.socket = socket;
    options.gate = gate;
    listener_ = DataListener::Create({"127.0.0.1", 0}, key_, options).value();
  }
  absl::StatusOr<std::unique_ptr<DataSocket>> ConnectAs(const DataPeers& peers,
                                                        const DataSocketOptions& options = {},
                                                        Deadline deadline = Soon()) {
    return DataSocket::Connect(listener_->endpoint(), key_, peers, options, deadline);
  }
  // Two ends of one connection: rank 1 and rank 0.
  void Pair(DataSocketOptions socket = {}) {
    Listen(socket);
    client_ = ConnectAs({3, 1, 0, 0}, socket).value();
    server_ = listener_->Accept(Soon()).value();
  }
  const JobKey key_ = JobKey::Generate().value();
  std::unique_ptr<DataListener> listener_;
  std::unique_ptr<DataSocket> client_;
  std::unique_ptr<DataSocket> server_;
};

TEST_F(DataSocketTest, MovesMessagesOfEverySize) {
  Pair();
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4095}, size_t{256U << 10},
                             size_t{(256U << 10) + 1}, size_t{9U << 20}}) {
    const auto sent = Pattern(bytes);
    auto received = Pattern(bytes, 9);
    absl::Status status;
    std::thread sender([&] { status = client_->Send(sent, Soon()); });
    ASSERT_TRUE(server_->Receive(absl::MakeSpan(received), Soon()).ok()) << bytes;
    sender.join();
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(sent == received) << bytes;
  }
}

TEST_F(DataSocketTest, MovesMessagesBothWaysAtOnceFromOneThread) {
  Pair({.chunk_bytes = 4096});
  const auto up = Pattern(5U << 20, 1);
  const auto down = Pattern(7U << 20, 2);
  std::vector<std::byte> at_server(up.size());
  std::vector<std::byte> at_client(down.size());
  std::array<bool, 4> done{};
  const Deadline deadline = Soon();
  while (!(done[0] && done[1] && done[2] && done[3])) {
    ASSERT_FALSE(deadline.Expired());
    const auto step = [](bool finished, absl::StatusOr<bool> moved) {
      EXPECT_TRUE(moved.ok()) << moved.status();
      return finished || moved.value_or(true);
    };
    done[0] = done[0] || step(false, client_->TrySend(up));
    done[1] = done[1] || step(false, server_->TryReceive(absl::MakeSpan(at_server)));
    done[2] = done[2] || step(false, server_->TrySend(down));
    done[3] = done[3] || step(false, client_->TryReceive(absl::MakeSpan(at_client)));
    std::array<pollfd, 2> polls = {pollfd{client_->fd(), POLLIN | POLLOUT, 0},
                                   pollfd{server_->fd(), POLLIN | POLLOUT, 0}};
    ASSERT_GE(::poll(polls.data(), polls.size(), 100), 0);
  }
  EXPECT_TRUE(at_server == up);
  EXPECT_TRUE(at_client == down);
}

TEST_F(DataSocketTest, TellsRankAndChannel) {
  Listen();
  std::vector<std::unique_ptr<DataSocket>> clients;
  for (const int rank : {3, 1, 2}) {
    for (const int channel : {1, 0}) {
      clients.push_back(ConnectAs({3, rank, 0, channel}).value());
    }
  }
  for (int rank = 1; rank < 4; ++rank) {
    for (int channel = 0; channel < 2; ++channel) {
      const auto socket = listener_->AcceptFrom(rank, channel, Soon()).value();
      EXPECT_EQ(socket->peers().peer, rank);
      EXPECT_EQ(socket->peers().channel, channel);
      EXPECT_THAT(socket->name(), HasSubstr("rank 0 (127.0.0.1:"));
    }
  }
  const auto none = listener_->AcceptFrom(2, 7, Deadline::After(absl::Milliseconds(20)));
  EXPECT_EQ(none.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("rank 2 (channel 7)"));
}

TEST_F(DataSocketTest, FlippedByteIsFoundAndTheChunkIsNamed) {
  constexpr int64_t kHandshake = 68 + 32;
  struct Case {
    int64_t offset;
    const char* text;
  };
  // In the payload of chunk 1; in the length of chunk 0.
  for (const Case& c : {Case{kHandshake + 16 + 4096 + 16 + 100, "chunk 1 (4096 bytes) from rank 1"},
                        Case{kHandshake, "header of chunk 0 from rank 1"}}) {
    Listen({.chunk_bytes = 4096});
    TcpProxy proxy(listener_->endpoint());
    proxy.FlipByteToServer(c.offset);
    client_ =
        DataSocket::Connect(proxy.endpoint(), key_, {3, 1, 0, 0}, {.chunk_bytes = 4096}, Soon())
            .value();
    server_ = listener_->Accept(Soon()).value();
    const auto sent = Pattern(4 * 4096);
    ASSERT_TRUE(client_->Send(sent, Soon()).ok());
    std::vector<std::byte> received(sent.size());
    const absl::Status status = server_->Receive(absl::MakeSpan(received), Soon());
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.text));
  }
}

// Its checksums are right: only the number in its header tells that it is not the next one.
TEST_F(DataSocketTest, AChunkThatComesTwiceIsNotTakenForTheNext) {
  constexpr size_t kChunk = 16 + 4096;
  Listen({.chunk_bytes = 4096});
  TcpProxy proxy(listener_->endpoint());
  client_ = DataSocket::Connect(proxy.endpoint(), key_, {3, 1, 0, 0}, {.chunk_bytes = 4096}, Soon())
                .value();
  server_ = listener_->Accept(Soon()).value();
  const auto sent = Pattern(4096);
  ASSERT_TRUE(client_->Send(sent, Soon()).ok());
  std::vector<std::byte> received(sent.size());
  ASSERT_TRUE(server_->Receive(absl::MakeSpan(received), Soon()).ok());
  const std::string all = proxy.FromClient();
  const auto* const bytes = reinterpret_cast<const std::byte*>(all.data());
  ASSERT_GE(all.size(), kChunk);
  ASSERT_TRUE(WriteAll(client_->fd(), {bytes + all.size() - kChunk, kChunk}, Soon()).ok());
  const absl::Status status = server_->Receive(absl::MakeSpan(received), Soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("header of chunk 1 from rank 1"));
}

TEST_F(DataSocketTest, WithoutCrcTheSameFlipGoesThrough) {
  Listen({.crc = false, .chunk_bytes = 4096});
  TcpProxy proxy(listener_->endpoint());
  proxy.FlipByteToServer(68 + 32 + 16 + 100);
  client_ = DataSocket::Connect(proxy.endpoint(), key_, {3, 1, 0, 0},
                                {.crc = false, .chunk_bytes = 4096}, Soon())
                .value();
  server_ = listener_->Accept(Soon()).value();
  auto sent = Pattern(4096);
  ASSERT_TRUE(client_->Send(sent, Soon()).ok());
  std::vector<std::byte> received(sent.size());
  ASSERT_TRUE(server_->Receive(absl::MakeSpan(received), Soon()).ok());
  sent[100] ^= std::byte{1};
  EXPECT_TRUE(sent == received);
}

TEST_F(DataSocketTest, ThroughTlsMessagesOfEverySizeAreMovedAndNobodyReadsThem) {
  Listen({.tls = true});
  TcpProxy proxy(listener_->endpoint());
  client_ =
      DataSocket::Connect(proxy.endpoint(), key_, {3, 1, 0, 0}, {.tls = true}, Soon()).value();
  server_ = listener_->Accept(Soon()).value();
  const std::string secret = "gradients are nobody's business";
  for (const size_t bytes :
       {size_t{31}, size_t{4096}, size_t{(256U << 10) + 1}, size_t{3U << 20}}) {
    auto sent = Pattern(bytes);
    std::copy_n(reinterpret_cast<const std::byte*>(secret.data()), secret.size(), sent.begin());
    auto received = Pattern(bytes, 9);
    absl::Status status;
    std::thread sender([&] { status = client_->Send(sent, Soon()); });
    const absl::Status got = server_->Receive(absl::MakeSpan(received), Soon());
    sender.join();
    ASSERT_TRUE(got.ok()) << got;
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(sent == received) << bytes;
  }
  EXPECT_EQ(proxy.FromClient().find(secret), std::string::npos);
  EXPECT_GT(proxy.FromClient().size(), size_t{3U << 20});
}

TEST_F(DataSocketTest, AByteThatIsFlippedInsideTlsEndsTheConnection) {
  Listen({.tls = true});
  TcpProxy proxy(listener_->endpoint());
  client_ =
      DataSocket::Connect(proxy.endpoint(), key_, {3, 1, 0, 0}, {.tls = true}, Soon()).value();
  server_ = listener_->Accept(Soon()).value();
  proxy.FlipByteToServer(static_cast<int64_t>(proxy.FromClient().size()) + 5000);
  ASSERT_TRUE(client_->Send(Pattern(10000), Soon()).ok());
  std::vector<std::byte> received(10000);
  const absl::Status status = server_->Receive(absl::MakeSpan(received), Soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
}

TEST_F(DataSocketTest, DifferentTlsChoicesAreRefusedByName) {
  for (const bool server : {true, false}) {
    Listen({.tls = server});
    const auto socket = ConnectAs({3, 1, 0, 0}, {.tls = !server});
    EXPECT_EQ(socket.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(socket.status().message()),
                HasSubstr(server ? "rank 0 sends its data through TLS and rank 1 does not"
                                 : "rank 1 sends its data through TLS and rank 0 does not"));
  }
}

TEST_F(DataSocketTest, DifferentSizesAreAnErrorThatNamesBoth) {
  Pair();
  ASSERT_TRUE(client_->Send(Pattern(100), Soon()).ok());
  std::vector<std::byte> received(200);
  const absl::Status status = server_->Receive(absl::MakeSpan(received), Soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 1 sends a chunk of 100"), HasSubstr("rank 0 expects 200")));
}

TEST_F(DataSocketTest, DifferentCrcChoicesAreRefusedByName) {
  Listen({.crc = false});
  const auto socket = ConnectAs({3, 1, 0, 0}, {.crc = true});
  EXPECT_EQ(socket.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(socket.status().message()), HasSubstr("rank 1 sums its data chunks"));
}

TEST_F(DataSocketTest, DeadlineTellsHowFarAMessageCameAndItCanGoOn) {
  Pair();
  const auto sent = Pattern(1000);
  std::vector<std::byte> received(1000);
  const absl::Status late =
      server_->Receive(absl::MakeSpan(received), Deadline::After(absl::Milliseconds(20)));
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.message()), HasSubstr("rank 1 sent 0 of 1000 bytes"));
  ASSERT_TRUE(client_->Send(sent, Soon()).ok());
  ASSERT_TRUE(server_->Receive(absl::MakeSpan(received), Soon()).ok());
  EXPECT_TRUE(sent == received);
  // With a peer that does not read, the sender stops at its deadline too.
  const auto large = Pattern(64U << 20);
  const absl::Status full = client_->Send(large, Deadline::After(absl::Milliseconds(50)));
  EXPECT_EQ(full.code(), absl::StatusCode::kDeadlineExceeded);
}

// The readers of both connections are late and have more unread than their windows hold. The
// connection with a user timeout breaks, which shows that the time is over; the other has waited
// longer and still delivers every byte.
TEST_F(DataSocketTest, ALateReaderWithMoreUnreadThanItsWindowLosesNothing) {
  const DataSocketOptions brief{.user_timeout = absl::Milliseconds(300)};
  Listen(brief);
  const auto late_sender = ConnectAs({3, 1, 0, 0}, brief).value();
  const auto late_reader = listener_->AcceptFrom(1, 0, Soon()).value();
  const auto watched_sender = ConnectAs({3, 1, 0, 1}, brief).value();
  const auto watched_reader = listener_->AcceptFrom(1, 1, Soon()).value();
  ASSERT_TRUE(late_sender->WaitForLateReader().ok());
  ASSERT_TRUE(late_reader->WaitForLateReader().ok());
  const auto sent = Pattern(32U << 20);
  ASSERT_EQ(late_sender->TrySend(sent).value(), false) << "the kernel took all of it";
  ASSERT_EQ(watched_sender->TrySend(sent).value(), false);
  pollfd broken{watched_sender->fd(), POLLHUP, 0};
  ASSERT_EQ(::poll(&broken, 1, 30000), 1) << "a window that stays closed counts as silence";
  const absl::Status status = watched_sender->TrySend(sent).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(HostFellSilent(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("timed out"));

  std::vector<std::byte> received(sent.size());
  absl::Status whole;
  std::thread sender([&] { whole = late_sender->Send(sent, Soon()); });
  const absl::Status read = late_reader->Receive(absl::MakeSpan(received), Soon());
  sender.join();
  EXPECT_TRUE(read.ok()) << read;
  EXPECT_TRUE(whole.ok()) << whole;
  EXPECT_TRUE(sent == received);
}

TEST_F(DataSocketTest, PeerThatDiesIsUnavailable) {
  Pair();
  client_.reset();
  std::vector<std::byte> received(10);
  const absl::Status status = server_->Receive(absl::MakeSpan(received), Soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
  EXPECT_FALSE(HostFellSilent(status)) << "its host said that the process ended";
}

TEST_F(DataSocketTest, ShutdownWakesABlockedReceive) {
  Pair();
  std::vector<std::byte> received(10);
  absl::Status status;
  std::thread receiver([&] { status = server_->Receive(absl::MakeSpan(received), Soon()); });
  server_->Shutdown();
  receiver.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_F(DataSocketTest, AnotherTokenEpochOrRankIsRefused) {
  Listen();
  const auto other = DataSocket::Connect(listener_->endpoint(), JobKey::Generate().value(),
                                         {3, 1, 0, 0}, {}, Soon());
  EXPECT_EQ(other.status().code(), absl::StatusCode::kPermissionDenied) << other.status();
  EXPECT_EQ(ConnectAs({4, 1, 0, 0}).status().code(), absl::StatusCode::kPermissionDenied);
  // Rank 2 listens elsewhere; rank 9 is not in the group.
  EXPECT_EQ(ConnectAs({3, 1, 2, 0}).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_FALSE(ConnectAs({3, 9, 0, 0}, {}, Deadline::After(absl::Milliseconds(100))).ok());
  EXPECT_GE(listener_->rejected(), 1U);
  EXPECT_TRUE(ConnectAs({3, 1, 0, 0}).ok());
}

TEST_F(DataSocketTest, ReplayedHandshakeIsRefused) {
  Listen();
  std::string recorded;
  {
    TcpProxy proxy(listener_->endpoint());
    client_ = DataSocket::Connect(proxy.endpoint(), key_, {3, 1, 0, 0}, {}, Soon()).value();
    server_ = listener_->Accept(Soon()).value();
    recorded = proxy.FromClient();
  }
  ASSERT_EQ(recorded.size(), 68U + 32U);
  const UniqueFd replay = Connect(listener_->endpoint(), Soon()).value();
  ASSERT_TRUE(WriteAll(replay.get(), BytesOf(recorded), Soon()).ok());
  EXPECT_TRUE(ClosedBy(replay.get(), Soon()));
  EXPECT_EQ(listener_->rejected(), 1U);
  EXPECT_FALSE(listener_->Accept(Deadline::After(absl::Milliseconds(10))).ok());
}

TEST_F(DataSocketTest, GarbageAndSlowStrangersNeitherGetInNorHoldUpOthers) {
  GateOptions gate;
  gate.grace = absl::Milliseconds(20);
  Listen({}, gate);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 100; ++i) {  // Port scans, half hellos and garbage.
    strangers.push_back(Connect(listener_->endpoint(), Soon()).value());
    const std::string bytes(static_cast<size_t>(i % 3) * 40, static_cast<char>(i));
    (void)WriteAll(strangers.back().get(), BytesOf(bytes), Soon());
  }
  for (int rank = 1; rank < 4; ++rank) {
    const auto socket = ConnectAs({3, rank, 0, 0});
    ASSERT_TRUE(socket.ok()) << socket.status();
    EXPECT_EQ(listener_->Accept(Soon()).value()->peers().peer, rank);
  }
  EXPECT_FALSE(listener_->Accept(Deadline::After(absl::Milliseconds(10))).ok());
  EXPECT_GE(listener_->rejected(), 33U);
}

TEST_F(DataSocketTest, SilentStrangerIsClosedInTime) {
  GateOptions gate;
  gate.handshake_timeout = absl::Milliseconds(50);
  Listen({}, gate);
  const UniqueFd silent = Connect(listener_->endpoint(), Soon()).value();
  EXPECT_TRUE(ClosedBy(silent.get(), Soon()));
  EXPECT_EQ(listener_->rejected(), 1U);
}

}  // namespace
}  // namespace dtrain::comm::data_socket_test
