// The devices and ports that groups over RDMA use, and the extensions that their ends agree on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/group.h"
#include "comm/transport/rdma/fake/fake_verbs.h"
#include "tests/comm/rdma/reducing_ranks.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm::rdma_devices_test {
namespace {

using ::dtrain::comm::rdma_ranks::Options;
using ::dtrain::comm::rdma_ranks::ReduceOnes;
using ::dtrain::comm::rdma_ranks::Text;
using ::dtrain::testing::Cluster;
using ::dtrain::testing::RankContext;
using ::dtrain::testing::RankResult;
using ::dtrain::testing::RunRanks;
using ::testing::HasSubstr;

// The extensions that rank r has, and those that its queue pairs agreed on with each peer in rank
// order.
void ExpectExtensions(const std::vector<Ece>& own, const std::vector<std::vector<Ece>>& agreed) {
  const int size = static_cast<int>(own.size());
  for (const RankResult& result : RunRanks({.size = size}, [=](RankContext& context) {
         const auto run = [&]() -> absl::Status {
           const auto i = static_cast<size_t>(context.rank);
           const auto seen = std::make_shared<std::vector<Ece>>();
           FakeVerbs verbs({.extensions = own[i], .agreed_extensions = seen});
           DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, Options(context, verbs)));
           DT_RETURN_IF_ERROR(ReduceOnes(*group, 1000));
           DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
           return *seen == agreed[i] ? absl::OkStatus() : absl::InternalError("other extensions");
         };
         return run();
       })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

TEST(RdmaGroupTest, TwoEndsAgreeOnTheExtensionsThatBothHave) {
  constexpr uint32_t kVendor = 0x15b3;
  ExpectExtensions({{kVendor, 0b0111}, {kVendor, 0b1110}, {kVendor, 0b0100}},
                   {{{kVendor, 0b0110}, {kVendor, 0b0100}},
                    {{kVendor, 0b0110}, {kVendor, 0b0100}},
                    {{kVendor, 0b0100}, {kVendor, 0b0100}}});
  // No extensions are used if one end has none, or if the vendors differ.
  ExpectExtensions({{kVendor, 0b0111}, {}, {0x8086, 0b0001}},
                   {{{}, {kVendor, 0}}, {{}, {}}, {{0x8086, 0}, {}}});
}

RdmaPort PortIn(uint8_t network, const std::string& device) {
  RdmaPort port = FakePort();
  port.device = device;
  port.gids[0].bytes[12] = network;
  return port;
}

// The device that each rank used: the last one it opened.
std::vector<RankResult> CreateNear(const std::function<std::string(int rank)>& near) {
  return RunRanks({.size = 3}, [near](RankContext& context) -> absl::Status {
    const auto opened = std::make_shared<std::vector<std::string>>();
    FakeVerbs verbs({.ports = {PortIn(10, "front0"), PortIn(11, "rail1"), PortIn(12, "rail2")},
                     .opened = opened,
                     .rails = true});
    GroupOptions options = Options(context, verbs);
    options.rdma.near_device = near(context.rank);
    DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, options));
    DT_RETURN_IF_ERROR(ReduceOnes(*group, 100000));
    DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
    return absl::UnknownError(absl::StrCat(group->transport(), " by ", opened->back()));
  });
}

TEST(RdmaGroupTest, RanksUseTheNearestDeviceWhereThoseReachEachOther) {
  for (const RankResult& result : CreateNear([](int) { return "rail2"; })) {
    EXPECT_EQ(result.status, absl::UnknownError("rdma by rail2"));
  }
  for (const RankResult& result : CreateNear([](int) { return ""; })) {
    EXPECT_EQ(result.status, absl::UnknownError("rdma by front0"));
  }
}

TEST(RdmaGroupTest, WhereTheNearestDevicesDoNotReachEachOtherThoseOfTheAddressesAreUsed) {
  for (const RankResult& result :
       CreateNear([](int rank) { return rank == 1 ? "rail1" : "rail2"; })) {
    EXPECT_EQ(result.status, absl::UnknownError("rdma by front0"));
  }
}

RdmaPort InfiniBandPort() {
  RdmaPort port = FakePort();
  port.ethernet = false;
  port.lid = 7;
  port.gids[0].index = 0;
  port.gids[0].type = RdmaGid::Type::kInfiniBand;
  return port;
}

TEST(RdmaGroupTest, InfiniBandPortsConnectToEachOtherAndNotToEthernet) {
  for (const bool mixed : {false, true}) {
    for (const RankResult& result : RunRanks({.size = 2}, [mixed](RankContext& context) {
           const auto run = [&]() -> absl::Status {
             const auto connected = std::make_shared<std::vector<QueuePairSettings>>();
             const bool ethernet = mixed && context.rank == 1;
             FakeVerbs verbs(
                 {.ports = {ethernet ? FakePort() : InfiniBandPort()}, .connected = connected});
             DT_ASSIGN_OR_RETURN(auto group,
                                 CreateHostGroup(context.store, Options(context, verbs)));
             DT_RETURN_IF_ERROR(ReduceOnes(*group, 100000));
             DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
             return connected->at(0).ethernet ? absl::InternalError("as Ethernet")
                                              : absl::OkStatus();
           };
           return run();
         })) {
      if (mixed) {
        EXPECT_EQ(result.status.code(), absl::StatusCode::kFailedPrecondition) << result.status;
        EXPECT_THAT(Text(result), HasSubstr("which cannot be connected: set comm.rdma.device"));
      } else {
        EXPECT_TRUE(result.status.ok()) << result.status;
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::comm::rdma_devices_test
