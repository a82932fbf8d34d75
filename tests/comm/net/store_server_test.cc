// The store with strangers, slow clients, broken peers and a server that ends.
#include "comm/net/store_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/net/store_client.h"
#include "comm/net/store_protocol.h"
#include "tests/comm/net/tcp_proxy.h"

namespace dtrain::comm::store_server_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Deadline Soon() { return Deadline::After(absl::Seconds(30)); }

// Waits until `condition` holds; false after 30 s.
bool Eventually(const std::function<bool()>& condition) {
  const Deadline deadline = Soon();
  while (!condition()) {
    if (deadline.Expired()) {
      return false;
    }
    Clock::Real().Sleep(absl::Milliseconds(1));
  }
  return true;
}

class StoreServerTest : public ::testing::Test {
 protected:
  void Serve(StoreServerOptions options = {}) {
    server_ = StoreServer::Create("127.0.0.1", 0, key_, 1, options).value();
  }
  absl::StatusOr<std::unique_ptr<StoreClient>> ConnectTo(const Endpoint& where, const JobKey& key,
                                                         uint64_t epoch = 1) {
    return StoreClient::Connect(where, key, {.epoch = epoch, .id = 0, .name = "test"}, Soon());
  }
  std::unique_ptr<StoreClient> Client() { return ConnectTo(server_->endpoint(), key_).value(); }
  std::unique_ptr<SecureChannel> Channel() {
    return SecureChannel::Connect(server_->endpoint(), key_, {.epoch = 1}, Soon()).value();
  }
  // The store answers, and no stranger has changed it.
  void ExpectServes() {
    const auto client = Client();
    ASSERT_TRUE(client->Set("probe", "1", Soon()).ok());
    EXPECT_EQ(client->Get("probe", Soon()).value(), "1");
  }
  const JobKey key_ = JobKey::Generate().value();
  std::unique_ptr<StoreServer> server_;
};

TEST_F(StoreServerTest, WildcardAddressIsRefused) {
  const auto server = StoreServer::Create("0.0.0.0", 0, key_, 1);
  EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument);
  StoreServerOptions any;
  any.listen.any_address = true;
  EXPECT_TRUE(StoreServer::Create("0.0.0.0", 0, key_, 1, any).ok());
}

TEST_F(StoreServerTest, WrongTokenIsRefusedAtOnce) {
  Serve();
  const auto client = ConnectTo(server_->endpoint(), JobKey::Generate().value());
  EXPECT_EQ(client.status().code(), absl::StatusCode::kPermissionDenied) << client.status();
  EXPECT_THAT(std::string(client.status().message()),
              AllOf(HasSubstr("job token"), HasSubstr(server_->endpoint().ToString())));
  EXPECT_TRUE(Eventually([&] { return server_->rejected() == 1; }));
  ExpectServes();
}

// A TLS client made by hand: without a PSK, or with the right name and a wrong key.
struct RawPsk {
  std::string identity;
  std::string key;
};
int OfferPsk(SSL* ssl, const EVP_MD*, const unsigned char** identity, size_t* bytes,
             SSL_SESSION** session) {
  const auto* const psk = static_cast<const RawPsk*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
  const unsigned char suite[] = {0x13, 0x01};
  *session = SSL_SESSION_new();
  SSL_SESSION_set1_master_key(*session, reinterpret_cast<const unsigned char*>(psk->key.data()),
                              psk->key.size());
  SSL_SESSION_set_cipher(*session, SSL_CIPHER_find(ssl, suite));
  SSL_SESSION_set_protocol_version(*session, TLS1_3_VERSION);
  *identity = reinterpret_cast<const unsigned char*>(psk->identity.data());
  *bytes = psk->identity.size();
  return 1;
}
bool RawHandshakeSucceeds(const Endpoint& where, RawPsk* psk) {
  const UniqueFd fd = Connect(where, Soon()).value();
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  if (psk != nullptr) {
    SSL_CTX_set_app_data(context, psk);
    SSL_CTX_set_psk_use_session_callback(context, OfferPsk);
  }
  SSL* const ssl = SSL_new(context);
  SSL_set_fd(ssl, fd.get());
  int result = 0;
  while ((result = SSL_connect(ssl)) != 1) {
    const int error = SSL_get_error(ssl, result);
    if ((error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) ||
        !WaitReadable(fd.get(), Soon()).ok()) {
      break;
    }
  }
  SSL_free(ssl);
  SSL_CTX_free(context);
  return result == 1;
}

TEST_F(StoreServerTest, MissingTokenAndWrongKeyUnderTheRightNameAreRefused) {
  Serve();
  EXPECT_FALSE(RawHandshakeSucceeds(server_->endpoint(), nullptr));
  RawPsk wrong{key_.Identity(), std::string(32, 'w')};
  EXPECT_FALSE(RawHandshakeSucceeds(server_->endpoint(), &wrong));
  EXPECT_TRUE(Eventually([&] { return server_->rejected() == 2; }));
  // A client with the right key gets in, so the two refusals above are about the key.
  const SecretKey psk = key_.TlsPsk();
  RawPsk right{key_.Identity(),
               std::string(reinterpret_cast<const char*>(psk.bytes().data()), SecretKey::kBytes)};
  EXPECT_TRUE(RawHandshakeSucceeds(server_->endpoint(), &right));
}

TEST_F(StoreServerTest, GarbageIsClosedWithoutAnAnswerThatHelps) {
  Serve();
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string(100, '\0'),
        std::string("\x16\x03\x01\xff\xff", 5) + std::string(1000, 'A'), std::string(70000, 'z')}) {
    const UniqueFd stranger = Connect(server_->endpoint(), Soon()).value();
    (void)WriteAll(stranger.get(), BytesOf(garbage), Soon());
    EXPECT_TRUE(ClosedBy(stranger.get(), Soon()));
  }
  EXPECT_EQ(server_->rejected(), 4U);
  ExpectServes();
}

TEST_F(StoreServerTest, ReplayedConnectionChangesNothing) {
  Serve();
  std::string recorded;
  {
    TcpProxy proxy(server_->endpoint());
    const auto client = ConnectTo(proxy.endpoint(), key_).value();
    ASSERT_EQ(client->Add("count", 1, Soon()).value(), 1);
    recorded = proxy.FromClient();
  }
  const UniqueFd replay = Connect(server_->endpoint(), Soon()).value();
  (void)WriteAll(replay.get(), BytesOf(recorded), Soon());
  EXPECT_TRUE(ClosedBy(replay.get(), Soon()));
  EXPECT_EQ(Client()->Add("count", 0, Soon()).value(), 1);
  EXPECT_EQ(server_->rejected(), 1U);
}

TEST_F(StoreServerTest, StaleEpochIsToldToStop) {
  Serve();
  const auto client = ConnectTo(server_->endpoint(), key_, 0);
  EXPECT_EQ(client.status().code(), absl::StatusCode::kAborted) << client.status();
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("must stop"));
}

TEST_F(StoreServerTest, RealClientsWorkWhileAHundredSlowOnesStand) {
  StoreServerOptions options;
  options.gate.grace = absl::Milliseconds(20);
  Serve(options);
  std::atomic<bool> stop{false};
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 100; ++i) {
    slow.push_back(Connect(server_->endpoint(), Soon()).value());
  }
  std::thread trickle([&] {  // A TLS record that never ends, byte by byte, and new connections.
    for (size_t turn = 0; !stop; ++turn) {
      UniqueFd& fd = slow[turn % slow.size()];
      if (!WriteAll(fd.get(), BytesOf("\x16"), Deadline::After(absl::Milliseconds(5))).ok()) {
        auto again = Connect(server_->endpoint(), Soon());
        fd = again.ok() ? *std::move(again) : UniqueFd();
      }
      Clock::Real().Sleep(absl::Milliseconds(1));
    }
  });
  for (int i = 0; i < 10; ++i) {
    const auto client = Client();
    for (int j = 0; j < 20; ++j) {
      EXPECT_EQ(client->Add("steps", 1, Soon()).value(), i * 20 + j + 1);
    }
  }
  stop = true;
  trickle.join();
  EXPECT_GE(server_->rejected(), 36U);
}

TEST_F(StoreServerTest, UnfinishedHandshakesAreBoundedAndTimeOut) {
  StoreServerOptions options;
  options.gate.handshake_timeout = absl::Milliseconds(100);
  options.gate.per_address_max = 4;
  options.gate.loopback_exempt = false;
  Serve(options);
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 6; ++i) {
    silent.push_back(Connect(server_->endpoint(), Soon()).value());
  }
  // Two are refused at once because of the limit, four because their time is over.
  EXPECT_TRUE(Eventually([&] { return server_->rejected() == 6; }));
  for (const UniqueFd& fd : silent) {
    EXPECT_TRUE(ClosedBy(fd.get(), Soon()));
  }
  ExpectServes();
}

TEST_F(StoreServerTest, ManyClientsOfOneAddressGetInTogether) {
  StoreServerOptions options;
  options.gate.loopback_exempt = false;  // Treated like ranks of another node.
  Serve(options);
  constexpr int kClients = 32;
  std::vector<std::thread> threads;
  std::atomic<int> done{0};
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&] { done += Client()->Add("in", 1, Soon()).ok() ? 1 : 0; });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(done, kClients);
}

TEST_F(StoreServerTest, MalformedRequestsCloseTheirConnectionOnly) {
  Serve();
  const auto bystander = Client();
  const std::string good = EncodeStoreRequest({.id = 1, .op = StoreOp::kSet, .keys = {"k"}});
  const std::vector<std::pair<uint32_t, std::string>> bad = {
      {99, good},
      {kFrameStoreRequest, ""},
      {kFrameStoreRequest, good.substr(0, good.size() - 1)},
      {kFrameStoreRequest, good + "x"},
      {kFrameStoreRequest, std::string(kStoreRequestBytesMax + 1, '\0')},
      {kFrameStoreRequest, EncodeStoreRequest({.id = 1, .op = static_cast<StoreOp>(77)})},
      {kFrameStoreRequest, EncodeStoreRequest({.id = 1, .op = StoreOp::kSet})},
      {kFrameStoreRequest, EncodeStoreRequest({.id = 1, .op = StoreOp::kSet, .keys = {""}})}};
  for (const auto& [type, payload] : bad) {
    const auto channel = Channel();
    (void)channel->Send(type, payload, Soon());
    EXPECT_EQ(channel->Receive(Soon()).status().code(), absl::StatusCode::kUnavailable)
        << type << " " << payload.size();
  }
  EXPECT_TRUE(bystander->Set("k", "v", Soon()).ok());
}

TEST_F(StoreServerTest, ClientThatNeverReadsIsBoundedAndHoldsUpNobody) {
  StoreServerOptions options;
  options.client_output_max = 1U << 20;
  Serve(options);
  const auto client = Client();
  ASSERT_TRUE(client->Set("big", std::string(kStoreValueBytesMax, 'b'), Soon()).ok());
  const auto deaf = Channel();
  for (uint64_t id = 1; id <= 200; ++id) {  // 200 MiB of answers.
    const auto request = EncodeStoreRequest({.id = id, .op = StoreOp::kGet, .keys = {"big"}});
    if (!deaf->Send(kFrameStoreRequest, request, Deadline::After(absl::Milliseconds(1))).ok()) {
      break;
    }
  }
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(client->Set("small", "s", Soon()).ok());
    EXPECT_LE(server_->BytesInUse(), size_t{5} << 20);
  }
  for (int i = 0; i < 200; ++i) {  // This client has lost nothing either.
    ASSERT_TRUE(deaf->Receive(Soon()).ok()) << i;
  }
}

TEST_F(StoreServerTest, ClientThatFloodsDoesNotStarveAnother) {
  Serve();
  const auto victim = Client();
  std::atomic<bool> stop{false};
  std::thread flood([&, channel = Channel()] {
    const auto request = EncodeStoreRequest({.id = 1, .op = StoreOp::kCheck, .keys = {"x"}});
    while (!stop && channel->Send(kFrameStoreRequest, request, Soon()).ok()) {
      (void)channel->Receive(Deadline::After(absl::ZeroDuration()));
    }
  });
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(victim->Add("v", 1, Soon()).value(), i + 1);
  }
  stop = true;
  flood.join();
}

TEST_F(StoreServerTest, BytesInUseComeBackAfterDeleteCancelAndDeath) {
  Serve();
  auto client = Client();
  ASSERT_TRUE(client->Set("a", std::string(500000, 'a'), Soon()).ok());
  EXPECT_TRUE(Eventually([&] { return server_->BytesInUse() >= 500000; }));
  ASSERT_TRUE(client->Delete("a", Soon()).value());
  const auto settles = [&] { return server_->BytesInUse() < 1000; };
  EXPECT_TRUE(Eventually(settles)) << server_->BytesInUse();
  std::vector<std::string> keys;
  for (int i = 0; i < 2000; ++i) {
    keys.push_back(absl::StrCat("a rather long key that nobody will ever set, number ", i));
  }
  EXPECT_FALSE(client->Wait(keys, Deadline::After(absl::Milliseconds(10))).ok());
  EXPECT_TRUE(Eventually(settles)) << server_->BytesInUse();
  auto channel = Channel();  // The client leaves while its request waits.
  ASSERT_TRUE(channel
                  ->Send(kFrameStoreRequest,
                         EncodeStoreRequest({.id = 1, .op = StoreOp::kWait, .keys = keys}), Soon())
                  .ok());
  EXPECT_TRUE(Eventually([&] { return server_->BytesInUse() > 100000; }));
  channel.reset();
  EXPECT_TRUE(Eventually(settles)) << server_->BytesInUse();
  EXPECT_TRUE(Eventually([&] { return server_->clients() == 1; })) << server_->clients();
}

// Two waits with the same number, which the server could not tell apart.
TEST_F(StoreServerTest, ANumberThatWaitsAlreadyEndsItsConnectionAndNoOther) {
  Serve();
  const auto bystander = Client();
  const auto channel = Channel();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(channel
                    ->Send(kFrameStoreRequest,
                           EncodeStoreRequest({.id = 7, .op = StoreOp::kGet, .keys = {"late"}}),
                           Soon())
                    .ok());
  }
  EXPECT_EQ(channel->Receive(Soon()).status().code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(bystander->Set("late", "1", Soon()).ok()) << "nobody waits for it any more";
  EXPECT_EQ(bystander->Get("late", Soon()).value(), "1");
}

TEST_F(StoreServerTest, FullStoreAndTooManyWaitsAreNamedErrors) {
  StoreServerOptions options;
  options.bytes_max = 10000;
  options.client_waits_max = 2;
  Serve(options);
  const auto client = Client();
  const absl::Status full = client->Set("a", std::string(20000, 'a'), Soon());
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_THAT(std::string(full.message()), AllOf(HasSubstr("full"), HasSubstr("\"a\"")));
  const auto channel = Channel();
  for (uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(channel
                    ->Send(kFrameStoreRequest,
                           EncodeStoreRequest({.id = id, .op = StoreOp::kGet, .keys = {"never"}}),
                           Soon())
                    .ok());
  }
  const auto reply = ParseStoreReply(channel->Receive(Soon())->payload).value();
  EXPECT_EQ(reply.id, 3U);
  EXPECT_EQ(reply.status.code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(StoreServerTest, ServerThatEndsIsUnavailableToAllWaitingCalls) {
  Serve();
  const auto client = Client();
  std::vector<std::thread> threads;
  std::vector<absl::Status> statuses(4);
  for (size_t i = 0; i < statuses.size(); ++i) {
    threads.emplace_back([&, i] { statuses[i] = client->Get("never", Soon()).status(); });
  }
  server_.reset();
  for (size_t i = 0; i < statuses.size(); ++i) {
    threads[i].join();
    EXPECT_EQ(statuses[i].code(), absl::StatusCode::kUnavailable) << statuses[i];
  }
  const absl::Status after = client->Set("a", "b", Soon());
  EXPECT_EQ(after.code(), absl::StatusCode::kUnavailable) << after;
  EXPECT_THAT(std::string(after.message()), HasSubstr("the store is gone"));
}

TEST_F(StoreServerTest, CloseWakesTheCallsOfOtherThreads) {
  Serve();
  const auto client = Client();
  absl::Status status;
  std::thread waiter([&] { status = client->Get("never", Soon()).status(); });
  client->Close();
  waiter.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_F(StoreServerTest, AlteredRecordIsNeverTakenForARequest) {
  Serve();
  TcpProxy proxy(server_->endpoint());
  const auto client = ConnectTo(proxy.endpoint(), key_).value();
  ASSERT_TRUE(client->Set("k", "old", Soon()).ok());
  proxy.FlipByteToServer(static_cast<int64_t>(proxy.FromClient().size()) + 30);
  const absl::Status set = client->Set("k", "new", Soon());
  EXPECT_EQ(set.code(), absl::StatusCode::kUnavailable) << set;
  EXPECT_EQ(Client()->Get("k", Soon()).value(), "old");
}

// A process of its own that runs `body` and exits with 0 when it returned true. It is started
// before this process has any thread.
class Child {
 public:
  explicit Child(const std::function<bool(int port)>& body) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      int port = 0;
      ::close(ends[1]);
      const bool good = ::read(ends[0], &port, sizeof(port)) == sizeof(port) && body(port);
      ::_exit(good ? 0 : 1);
    }
    ::close(ends[0]);
    to_child_.reset(ends[1]);
  }
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  void Tell(int port) { EXPECT_EQ(::write(to_child_.get(), &port, sizeof(port)), 4); }
  void Kill() { ::kill(pid_, SIGKILL); }
  int Join() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd to_child_;
};

TEST_F(StoreServerTest, ProcessesMeetThroughIt) {
  constexpr int kProcesses = 4;
  std::vector<std::unique_ptr<Child>> children;
  for (int rank = 0; rank < kProcesses; ++rank) {
    children.push_back(std::make_unique<Child>([this, rank](int port) {
      const auto client = ConnectTo({"127.0.0.1", port}, key_);
      const auto set = [&](const std::string& key) {
        return (*client)->Set(key, absl::StrCat(rank), Soon()).ok();
      };
      if (!client.ok() || !set(RankKey("ready", rank)) ||
          !WaitForRanks(**client, "ready", kProcesses, Soon()).ok()) {
        return false;
      }
      for (int i = 0; i < 100; ++i) {
        if (!(*client)->Add("sum", rank, Soon()).ok()) {
          return false;
        }
      }
      return set(RankKey("done", rank));
    }));
  }
  Serve();
  for (const auto& child : children) {
    child->Tell(server_->port());
  }
  const auto client = Client();
  ASSERT_TRUE(WaitForRanks(*client, "done", kProcesses, Soon()).ok());
  EXPECT_EQ(client->Get("sum", Soon()).value(), "600");
  for (const auto& child : children) {
    EXPECT_EQ(child->Join(), 0);
  }
}

TEST_F(StoreServerTest, KilledServerProcessIsUnavailableAtOnce) {
  int ports[2];
  ASSERT_EQ(::pipe(ports), 0);
  Child child([&](int) {
    const auto server = StoreServer::Create("127.0.0.1", 0, key_, 1);
    const int port = server.ok() ? (*server)->port() : 0;
    (void)!::write(ports[1], &port, sizeof(port));
    ::pause();
    return true;
  });
  child.Tell(0);
  int port = 0;
  ASSERT_EQ(::read(ports[0], &port, sizeof(port)), 4);
  ::close(ports[0]);
  ::close(ports[1]);
  const auto client = ConnectTo({"127.0.0.1", port}, key_).value();
  ASSERT_TRUE(client->Set("a", "b", Soon()).ok());
  absl::Status status;
  std::thread waiter([&] { status = client->Get("never", Soon()).status(); });
  child.Kill();
  waiter.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

}  // namespace
}  // namespace dtrain::comm::store_server_test
