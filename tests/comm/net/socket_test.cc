#include "comm/net/socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/testing/ports.h"

namespace dtrain::comm::socket_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

Deadline Soon() { return Deadline::After(absl::Seconds(30)); }
Deadline Short() { return Deadline::After(absl::Milliseconds(30)); }

TEST(Endpoint, ReadsAndWritesBothFamilies) {
  EXPECT_EQ(ParseEndpoint("10.0.0.1:29500")->host, "10.0.0.1");
  EXPECT_EQ(ParseEndpoint("[::1]:80")->host, "::1");
  EXPECT_EQ(ParseEndpoint("[::1]:80")->ToString(), "[::1]:80");
  EXPECT_EQ(ParseEndpoint("node-1:0")->ToString(), "node-1:0");
  EXPECT_EQ(ParseEndpoint("node-1:65535")->port, 65535);
}

TEST(Endpoint, RefusesWhatIsNoAddress) {
  for (const char* text : {"", "host", ":80", "host:", "host:65536", "host:-1", "::1:80", "a:b"}) {
    const auto endpoint = ParseEndpoint(text);
    EXPECT_EQ(endpoint.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(endpoint.status().message()), HasSubstr(text));
  }
}

TEST(Endpoint, KnowsLoopbackAndWildcard) {
  for (const char* host : {"127.0.0.1", "127.9.9.9", "::1", "localhost", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
  for (const char* host : {"10.0.0.1", "::2", "128.0.0.1", "host"}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
  for (const char* host : {"0.0.0.0", "0", "0.0", "0x0", "::", "::%1", "::ffff:0.0.0.0", "", "*"}) {
    EXPECT_TRUE(IsWildcard(host)) << host;
  }
  EXPECT_FALSE(IsWildcard("127.0.0.1"));
}

TEST(Endpoint, AnOrdinaryAddressIsNeitherLoopbackNorWildcard) {
  for (const char* host : {"10.0.0.1", "fd00::1", "::ffff:10.0.0.1", "node-1", "0.0.0.1"}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
    EXPECT_FALSE(IsWildcard(host)) << host;
  }
  EXPECT_FALSE(IsWildcard("::1"));
}

TEST(Listen, RefusesTheWildcardUnlessAllowed) {
  for (const char* host : {"0.0.0.0", "::", ""}) {
    const auto refused = Listen({host, 0});
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << host;
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--rdzv-endpoint ADDRESS:PORT"));
  }
  EXPECT_TRUE(Listen({"0.0.0.0", 0}, {.any_address = true}).ok());
}

TEST(Listen, NamesATakenPort) {
  const UniqueFd first = Listen({"127.0.0.1", 0}).value();
  const Endpoint taken = LocalEndpoint(first.get());
  const auto second = Listen(taken);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(taken.ToString()));
}

class Connected : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto listener = Listen({GetParam(), 0});
    ASSERT_TRUE(listener.ok()) << listener.status();
    client_ = Connect(LocalEndpoint(listener->get()), Soon()).value();
    ASSERT_TRUE(WaitReadable(listener->get(), Soon()).ok());
    server_ = AcceptNow(listener->get()).value();
    ASSERT_TRUE(server_.valid());
  }
  UniqueFd client_;
  UniqueFd server_;
};
INSTANTIATE_TEST_SUITE_P(Families, Connected, ::testing::Values("127.0.0.1", "::1", "localhost"));

TEST_P(Connected, MovesMoreThanTheKernelBuffers) {
  std::vector<std::byte> sent(20U << 20);
  for (size_t i = 0; i < sent.size(); ++i) {
    sent[i] = static_cast<std::byte>(i * 31 >> 3);
  }
  std::vector<std::byte> received(sent.size());
  absl::Status written;
  std::thread writer([&] { written = WriteAll(client_.get(), sent, Soon()); });
  EXPECT_TRUE(ReadExactly(server_.get(), absl::MakeSpan(received), Soon()).ok());
  writer.join();
  EXPECT_TRUE(written.ok()) << written;
  EXPECT_TRUE(sent == received);
}

TEST_P(Connected, ReadThatIsCutNamesBothEndsAndHowFarItCame) {
  const std::string ends = ConnectionName(server_.get());
  const std::vector<std::byte> three(3);
  ASSERT_TRUE(WriteAll(client_.get(), three, Soon()).ok());
  client_.reset();
  std::vector<std::byte> ten(10);
  const absl::Status read = ReadExactly(server_.get(), absl::MakeSpan(ten), Soon());
  EXPECT_EQ(read.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(read.message()), HasSubstr(ends));
  EXPECT_THAT(std::string(read.message()), HasSubstr("3 of 10 bytes"));
}

// A peer whose host is gone is noticed after the time that was asked for, in milliseconds; an idle
// one is probed after a third of it, and then four times in the rest.
TEST_P(Connected, HasTheOptionsOfAConnectionThatMustNotHang) {
  const auto option = [](int fd, int level, int name) {
    int value = -1;
    socklen_t bytes = sizeof(value);
    EXPECT_EQ(getsockopt(fd, level, name, &value, &bytes), 0);
    return value;
  };
  ASSERT_TRUE(PrepareSocket(server_.get(), absl::Seconds(12)).ok());
  EXPECT_EQ(option(server_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT), 12000);
  struct Row {
    int fd;
    int idle_s;
    int interval_s;
  };
  for (const Row& row : {Row{client_.get(), 10, 5}, Row{server_.get(), 4, 2}}) {
    EXPECT_NE(option(row.fd, IPPROTO_TCP, TCP_NODELAY), 0);
    EXPECT_NE(option(row.fd, SOL_SOCKET, SO_KEEPALIVE), 0);
    EXPECT_EQ(option(row.fd, IPPROTO_TCP, TCP_KEEPIDLE), row.idle_s);
    EXPECT_EQ(option(row.fd, IPPROTO_TCP, TCP_KEEPINTVL), row.interval_s);
    EXPECT_EQ(option(row.fd, IPPROTO_TCP, TCP_KEEPCNT), 4);
  }
  EXPECT_EQ(option(client_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT),
            absl::ToInt64Milliseconds(ConnectOptions().user_timeout));
  // A connection with a late reader keeps only the probes.
  ASSERT_TRUE(WaitForLateReader(server_.get()).ok());
  EXPECT_EQ(option(server_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
  EXPECT_NE(option(server_.get(), SOL_SOCKET, SO_KEEPALIVE), 0);
}

TEST_P(Connected, ReadEndsAtItsDeadline) {
  std::vector<std::byte> ten(10);
  const absl::Status read = ReadExactly(server_.get(), absl::MakeSpan(ten), Short());
  EXPECT_EQ(read.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(read.message()), HasSubstr("0 of 10 bytes read"));
}

TEST_P(Connected, WriteToAGonePeerIsAnErrorAndNoSignal) {
  server_.reset();
  const std::vector<std::byte> bytes(1U << 20);
  absl::Status written;
  for (int i = 0; i < 100 && written.ok(); ++i) {
    written = WriteAll(client_.get(), bytes, Soon());
  }
  EXPECT_EQ(written.code(), absl::StatusCode::kUnavailable) << written;
}

TEST(Connect, NamesThePeerAndTheCause) {
  const UniqueFd bound = test_ports::BindLoopback(0);
  const Endpoint nobody = LocalEndpoint(bound.get());
  const auto once = Connect(nobody, Soon(), {.retry_refused = false});
  EXPECT_EQ(once.status().code(), absl::StatusCode::kUnavailable) << once.status();
  const auto fd = Connect(nobody, Deadline::After(absl::Milliseconds(100)));
  EXPECT_EQ(fd.status().code(), absl::StatusCode::kDeadlineExceeded) << fd.status();
  EXPECT_THAT(std::string(fd.status().message()), HasSubstr(nobody.ToString()));
  EXPECT_THAT(std::string(fd.status().message()), HasSubstr("refused"));
}

TEST(Connect, WaitsForAServerThatStartsLater) {
  const UniqueFd server = test_ports::BindLoopback(0);
  const Endpoint where = LocalEndpoint(server.get());
  absl::Status connected = absl::UnknownError("not yet");
  std::thread client([&] { connected = Connect(where, Soon()).status(); });
  EXPECT_EQ(::listen(server.get(), 1), 0);
  client.join();
  EXPECT_TRUE(connected.ok()) << connected;
}

TEST(Connect, NameThatDoesNotExistEndsAtTheDeadline) {
  const auto fd = Connect({"no-such-host.invalid", 1}, Deadline::After(absl::Milliseconds(200)));
  ASSERT_FALSE(fd.ok());
  EXPECT_THAT(std::string(fd.status().message()), HasSubstr("no-such-host.invalid"));
}

TEST(LocalAddresses, AreFoundByTheNameOfTheirInterface) {
  const auto addresses = LocalAddresses().value();
  ASSERT_FALSE(addresses.empty());
  EXPECT_EQ(InterfaceAddress("lo").value(), "127.0.0.1");
  const auto none = InterfaceAddress("nosuch0");
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.status().message()),
              ContainsRegex("interface \"nosuch0\"; interfaces with one: (.*, )?lo\\b"));
}

}  // namespace
}  // namespace dtrain::comm::socket_test
