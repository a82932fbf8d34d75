// A host that no longer answers is noticed within the time of its silent connection, even if data
// wait behind a closed window; a rank that is merely late is not taken for such a host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/net/data_socket.h"
#include "comm/transport/channel.h"
#include "comm/transport/stream_transport.h"
#include "comm/transport/tcp_mesh.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm::silent_host_test {
namespace {

using ::dtrain::testing::RankContext;
using ::dtrain::testing::RankResult;
using ::dtrain::testing::RunRanks;
using ::testing::HasSubstr;

constexpr auto kNo = [] { return false; };

int UserTimeoutOf(int fd) {
  int value = -1;
  socklen_t bytes = sizeof(value);
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &value, &bytes), 0);
  return value;
}

TEST(SilentHostTest, OnlyTheSilentConnectionsOfAMeshHaveAUserTimeout) {
  for (const RankResult& result : RunRanks({.size = 3}, [](RankContext& context) -> absl::Status {
         GroupOptions options = context.group_options();
         options.tcp_connections = 2;
         const Deadline deadline = Deadline::After(absl::Seconds(20));
         DT_ASSIGN_OR_RETURN(const auto mesh,
                             ConnectTcpMesh(*context.store, options, "mesh",
                                            std::vector<std::string>(3, "a rank"), deadline));
         std::vector<pollfd> items;
         mesh->AddDescriptors(items, [](int) { return true; });
         const size_t peers = 2;
         if (items.size() != 2 * peers) {
           return absl::InternalError(absl::StrCat(items.size(), " descriptors"));
         }
         for (size_t i = 0; i < items.size(); ++i) {
           const int wanted = i < peers ? 0 : 30000;  // Data first, then the control lines.
           if (UserTimeoutOf(items[i].fd) != wanted) {
             return absl::InternalError(absl::StrCat("connection ", i, " has a user timeout of ",
                                                     UserTimeoutOf(items[i].fd), " ms"));
           }
         }
         return absl::OkStatus();
       })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

// Sets the loopback device of this thread's network namespace up or down.
void SetLoopback(bool up) {
  const UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  ASSERT_EQ(ioctl(fd.get(), SIOCGIFFLAGS, &request), 0);
  request.ifr_flags =
      static_cast<short>(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
  ASSERT_EQ(ioctl(fd.get(), SIOCSIFFLAGS, &request), 0);
}

// Two ranks' ends of a mesh in one thread, whose silent connection notices within two seconds.
class TwoEnds {
 public:
  TwoEnds() {
    const JobKey key = JobKey::Generate().value();
    DataListener::Options listen;
    listen.world_size = 2;
    listen.socket.user_timeout = absl::Seconds(2);
    const auto listener = DataListener::Create({"127.0.0.1", 0}, key, listen).value();
    std::vector<StreamPeer> of_zero(2);
    std::vector<StreamPeer> of_one(2);
    of_zero[1].name = "rank 1 (node b, pid 7)";
    of_one[0].name = "rank 0 (node a, pid 6)";
    const Deadline soon = Deadline::After(absl::Seconds(20));
    for (const int channel : {0, 1}) {
      auto one =
          DataSocket::Connect(listener->endpoint(), key, {0, 1, 0, channel}, listen.socket, soon)
              .value();
      auto zero = listener->AcceptFrom(1, channel, soon).value();
      if (channel == 0) {
        of_zero[1].control = std::make_unique<DataChannel>(std::move(zero));
        of_one[0].control = std::make_unique<DataChannel>(std::move(one));
      } else {
        EXPECT_TRUE(zero->WaitForLateReader().ok() && one->WaitForLateReader().ok());
        of_zero[1].data.push_back(std::make_unique<DataChannel>(std::move(zero)));
        of_one[0].data.push_back(std::make_unique<DataChannel>(std::move(one)));
      }
    }
    const auto unknown = [](int) { return absl::OkStatus(); };
    zero_ = std::make_unique<StreamTransport>(0, std::move(of_zero), unknown);
    one_ = std::make_unique<StreamTransport>(1, std::move(of_one), unknown);
  }
  StreamTransport& zero() { return *zero_; }

 private:
  std::unique_ptr<StreamTransport> zero_;
  std::unique_ptr<StreamTransport> one_;
};

// Moves `transfers` on rank 0 and cuts the network between the two ranks; `moved` gets rank 0's
// result. False: a network namespace is not possible here.
bool MoveOverACutNetwork(const std::vector<Transfer>& transfers, absl::Status* moved) {
  bool entered = false;
  // A network namespace belongs to a thread and the threads that it starts.
  std::thread ranks([&] {
    entered = unshare(CLONE_NEWNET) == 0;
    if (!entered) {
      return;
    }
    SetLoopback(true);
    TwoEnds ends;
    bool cut = false;
    const auto cut_once = [&] {  // Cut the network when the peer's window is full.
      if (!std::exchange(cut, true)) {
        SetLoopback(false);
      }
      return absl::OkStatus();
    };
    *moved = ends.zero().Move(transfers, {Deadline::After(absl::Seconds(40)), cut_once, kNo});
  });
  ranks.join();
  return entered;
}

void ExpectSilent(const absl::Status& moved) {
  EXPECT_EQ(moved.code(), absl::StatusCode::kUnavailable) << moved;
  EXPECT_THAT(std::string(moved.message()),
              HasSubstr("rank 1 (node b, pid 7) is gone: its host answers nothing any more"));
}

TEST(SilentHostTest, ARankThatWaitsNoticesACutNetworkBeforeItsDeadline) {
  std::vector<std::byte> bytes(8);
  absl::Status moved;
  if (!MoveOverACutNetwork({ReceiveFrom(1, bytes.data(), bytes.size())}, &moved)) {
    GTEST_SKIP() << "network namespaces need CAP_SYS_ADMIN: THIS CASE DID NOT RUN";
  }
  ExpectSilent(moved);
}

TEST(SilentHostTest, ARankWhoseDataIsNotReadNoticesACutNetworkBeforeItsDeadline) {
  std::vector<std::byte> bytes(32U << 20);
  absl::Status moved;
  if (!MoveOverACutNetwork({SendTo(1, bytes.data(), bytes.size())}, &moved)) {
    GTEST_SKIP() << "network namespaces need CAP_SYS_ADMIN: THIS CASE DID NOT RUN";
  }
  ExpectSilent(moved);
}

// A silent connection that breaks with a given error.
class BreakingChannel final : public Channel {
 public:
  BreakingChannel(int fd, absl::Status status) : fd_(fd), status_(std::move(status)) {}
  absl::StatusOr<bool> TrySend(absl::Span<const std::byte>) override { return status_; }
  absl::StatusOr<bool> TryReceive(absl::Span<std::byte>) override { return status_; }
  void Shutdown() override {}
  int fd() const override { return fd_; }

 private:
  const int fd_;
  const absl::Status status_;
};

// The result of rank 0, which waits for 8 bytes of rank 1: the silent connection ends with `end`,
// and the data still arrive.
absl::Status ReceiveBeside(const absl::Status& end) {
  int data[2];
  int control[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, data), 0);
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, control), 0);
  const UniqueFd ends[] = {UniqueFd(data[0]), UniqueFd(data[1]), UniqueFd(control[0]),
                           UniqueFd(control[1])};
  EXPECT_EQ(shutdown(control[1], SHUT_RDWR), 0);  // Readable from now on.
  std::vector<StreamPeer> peers(2);
  peers[1].name = "rank 1 (node b, pid 7)";
  peers[1].data.push_back(std::make_unique<PlainChannel>(data[0]));
  peers[1].control = std::make_unique<BreakingChannel>(control[0], end);
  StreamTransport transport(0, std::move(peers), [](int) { return absl::OkStatus(); });
  std::vector<std::byte> bytes(8);
  int polls = 0;
  // The data arrive at the third poll, so that the silent connection is read before.
  const auto arrive = [&] {
    if (++polls == 3) {
      EXPECT_EQ(write(data[1], bytes.data(), bytes.size()), 8);
    }
    return absl::OkStatus();
  };
  const Transfer transfer = ReceiveFrom(1, bytes.data(), bytes.size());
  return transport.Move({&transfer, 1}, {Deadline::After(absl::Seconds(20)), arrive, kNo});
}

TEST(SilentHostTest, DataOfARankThatEndedStillCountsAndThatOfASilentHostIsNotAwaited) {
  EXPECT_TRUE(ReceiveBeside(absl::UnavailableError("it closed the connection")).ok());
  EXPECT_TRUE(ReceiveBeside(BrokenConnection(ECONNRESET)).ok());
  for (const int error : {ETIMEDOUT, EHOSTUNREACH, ENETUNREACH}) {
    ExpectSilent(ReceiveBeside(BrokenConnection(error)));
  }
}

}  // namespace
}  // namespace dtrain::comm::silent_host_test
