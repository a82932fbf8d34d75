// An agent that waits for node 0's store takes no core while it does.
#include "launcher/nodes/node_zero.h"

#include <sys/resource.h>

#include <memory>

#include "comm/net/store_server.h"
#include "gtest/gtest.h"
#include "launcher/machine.h"

namespace dtrain::launcher::node_zero_test {
namespace {

// The time of all threads of this process, in which the store's threads run too.
absl::Duration CpuTime() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
}

class NodeZeroTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<comm::StoreClient>> Connect(uint64_t epoch,
                                                             absl::Duration patience) {
    return ConnectToNodeZero(
        server_->endpoint(), key_,
        {.epoch = epoch, .role = comm::Hello::Role::kAgent, .id = 1, .name = "agent"},
        Deadline::After(patience), [] { return 0; });
  }

  const comm::JobKey key_ = *comm::JobKey::Generate();
  std::unique_ptr<comm::StoreServer> server_ =
      *comm::StoreServer::Create("127.0.0.1", 0, key_, /*epoch=*/4);
};

TEST_F(NodeZeroTest, AStoreOfTheAttemptBeforeIsWaitedForWithoutTakingACore) {
  constexpr absl::Duration kPatience = absl::Milliseconds(800);
  const absl::Duration before = CpuTime();
  const auto client = Connect(/*epoch=*/5, kPatience);
  EXPECT_TRUE(absl::IsDeadlineExceeded(client.status())) << client.status();
  EXPECT_LT(CpuTime() - before, kPatience / 3);
}

TEST_F(NodeZeroTest, TheStoreOfTheNextAttemptIsFoundAtOnceWhenItIsThere) {
  EXPECT_TRUE(Connect(/*epoch=*/4, absl::Seconds(30)).ok());
}

TEST_F(NodeZeroTest, AStopSignalEndsTheWait) {
  const auto client =
      ConnectToNodeZero(server_->endpoint(), key_,
                        {.epoch = 5, .role = comm::Hello::Role::kAgent, .id = 1, .name = "agent"},
                        Deadline::After(absl::Seconds(30)), [] { return 15; });
  EXPECT_TRUE(absl::IsAborted(client.status())) << client.status();
}

TEST(CannotServe, SaysWhatAddressesThereAreUnlessThePortIsTaken) {
  const absl::Status taken = absl::UnavailableError("Address already in use");
  EXPECT_EQ(CannotServe({"127.0.0.1", 7}, taken),
            absl::UnavailableError("node 0 cannot serve --rdzv-endpoint 127.0.0.1:7 (it must be an "
                                   "address of this host, and a free port): Address already in "
                                   "use"));
  const absl::Status foreign =
      CannotServe({"203.0.113.77", 7}, absl::UnavailableError("no address"));
  EXPECT_NE(foreign.message().find("no address; the addresses of this host are " +
                                   DescribeOwnAddresses()),
            std::string::npos)
      << foreign;
}

}  // namespace
}  // namespace dtrain::launcher::node_zero_test
