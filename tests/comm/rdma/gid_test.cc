// The choice of a rank's port and GID, over every combination that matters.
#include "comm/transport/rdma/gid.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "comm/transport/rdma/rdma_ports.h"

namespace dtrain::comm::gid_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Type = RdmaGid::Type;

RdmaGid Gid(int index, const std::string& address, Type type, const std::string& netdev) {
  RdmaGid gid;
  gid.index = index;
  gid.type = type;
  gid.netdev = netdev;
  const bool v4 = address.find(':') == std::string::npos;
  const std::string text = v4 ? "::ffff:" + address : address;
  EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), gid.bytes.data()), 1) << address;
  return gid;
}

// The GID table of a ConnectX port with a VLAN.
std::vector<RdmaGid> Table() {
  return {Gid(0, "fe80::1", Type::kRoceV1, "eth0"),    Gid(1, "fe80::1", Type::kRoceV2, "eth0"),
          Gid(2, "10.0.0.1", Type::kRoceV1, "eth0"),   Gid(3, "10.0.0.1", Type::kRoceV2, "eth0"),
          Gid(4, "fd00::1", Type::kRoceV2, "eth0"),    Gid(5, "10.7.0.1", Type::kRoceV1, "eth0.7"),
          Gid(6, "10.7.0.1", Type::kRoceV2, "eth0.7"), Gid(7, "fd07::1", Type::kRoceV2, "eth0.7")};
}

int Chosen(const std::vector<RdmaGid>& gids, int wanted, const std::string& address) {
  const auto gid = ChooseGid(gids, wanted, address);
  return gid.ok() ? gid->index : -1;
}

TEST(ChooseGidTest, TheOwnAddressDecidesThenTheKind) {
  EXPECT_EQ(Chosen(Table(), -1, ""), 3) << "IPv4 before IPv6, version 2 alone";
  EXPECT_EQ(Chosen(Table(), -1, "10.0.0.1"), 3);
  EXPECT_EQ(Chosen(Table(), -1, "10.7.0.1"), 6) << "the device of the address";
  EXPECT_EQ(Chosen(Table(), -1, "fd00::1"), 4);
  EXPECT_EQ(Chosen(Table(), -1, "fd00:0:0::1"), 4) << "spelled in another way";
  EXPECT_EQ(Chosen(Table(), -1, "fe80::1"), 1);
  EXPECT_EQ(Chosen(Table(), -1, "127.0.0.1"), 3) << "an address of no GID says nothing";
  EXPECT_EQ(Chosen(Table(), -1, "a.host.name"), 3);
}

TEST(ChooseGidTest, AnAddressWithoutVersionTwoStaysOnItsNetworkDevice) {
  auto gids = Table();
  gids.erase(gids.begin() + 6);  // eth0.7 has IPv4 in version 1 only.
  EXPECT_EQ(Chosen(gids, -1, "10.7.0.1"), 7) << "IPv6 of eth0.7, not IPv4 of eth0";
  gids.pop_back();
  EXPECT_EQ(Chosen(gids, -1, "10.7.0.1"), 3) << "rather another device than none";
}

TEST(ChooseGidTest, AWantedIndexIsTakenOrRefused) {
  for (const RdmaGid& gid : Table()) {
    const auto chosen = ChooseGid(Table(), gid.index, "10.7.0.1");
    EXPECT_EQ(chosen.ok(), gid.type == Type::kRoceV2) << gid.index;
    EXPECT_EQ(chosen.ok() ? chosen->index : gid.index, gid.index);
  }
  const auto missing = ChooseGid(Table(), 12, "");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()),
              testing::AllOf(HasSubstr("gid_index 12"), HasSubstr("3: 10.0.0.1 (RoCE v2, eth0)"),
                             HasSubstr("0: fe80::1 (RoCE v1, eth0)")));
}

// For every subset of the table and every wish, the chosen GID is RoCE v2 and no better one was
// available.
TEST(ChooseGidTest, NoSubsetGivesAWorseOneThanItHas) {
  const auto all = Table();
  const auto kind = [](const RdmaGid& gid) {
    return IsIpv4Mapped(gid.bytes) ? 0 : gid.bytes[0] == 0xfe ? 2 : 1;
  };
  for (unsigned subset = 0; subset < 1U << all.size(); ++subset) {
    std::vector<RdmaGid> gids;
    for (size_t i = 0; i < all.size(); ++i) {
      if ((subset >> i & 1) != 0) {
        gids.push_back(all[i]);
      }
    }
    for (const char* const address : {"", "10.0.0.1", "10.7.0.1", "fd07::1"}) {
      const bool any = std::any_of(gids.begin(), gids.end(),
                                   [](const RdmaGid& gid) { return gid.type == Type::kRoceV2; });
      const auto chosen = ChooseGid(gids, -1, address);
      ASSERT_EQ(chosen.ok(), any) << subset << " " << address;
      if (!any) {
        EXPECT_THAT(std::string(chosen.status().message()), HasSubstr(DescribeGids(gids)));
        continue;
      }
      EXPECT_EQ(chosen->type, Type::kRoceV2);
      for (const RdmaGid& other : gids) {
        if (other.type == Type::kRoceV2 && GidText(other.bytes) == address) {
          EXPECT_EQ(GidText(chosen->bytes), address) << subset;
        }
        if (other.type == Type::kRoceV2 && address[0] == '\0') {
          EXPECT_LE(kind(*chosen), kind(other)) << subset;
        }
      }
    }
  }
}

RdmaPort Port(const std::string& device, const std::string& address, bool active = true,
              bool ethernet = true) {
  RdmaPort port;
  port.device = device;
  port.active = active;
  port.ethernet = ethernet;
  port.state = active ? "ACTIVE" : "DOWN";
  port.mtu_bytes = 4096;
  if (!address.empty()) {
    port.gids = {Gid(0, "fe80::2", Type::kRoceV1, "eth"), Gid(5, address, Type::kRoceV2, "eth")};
  }
  return port;
}

TEST(ChoosePortTest, ThePortOfTheAddressBeforeTheFirst) {
  const std::vector<RdmaPort> ports = {Port("mlx5_0", "10.0.0.1"), Port("mlx5_1", "10.0.1.1")};
  const auto first = ChoosePort(ports, {});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->device, "mlx5_0");
  EXPECT_EQ(first->gid.index, 5);
  EXPECT_EQ(first->mtu_bytes, 4096);
  EXPECT_EQ(ChoosePort(ports, {.address = "10.0.1.1"})->device, "mlx5_1");
  EXPECT_EQ(ChoosePort(ports, {.device = "mlx5_0", .address = "10.0.1.1"})->device, "mlx5_0");
}

TEST(ChoosePortTest, SkipsWhatIsDownOrHasNoGid) {
  const std::vector<RdmaPort> ports = {Port("ib0", "", true, false),
                                       Port("down0", "10.0.0.1", false), Port("bare0", ""),
                                       Port("good0", "10.0.0.1")};
  const auto chosen = ChoosePort(ports, {.address = "10.0.0.1"});
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->device, "good0");
}

TEST(ChoosePortTest, TheNearestDeviceBeforeThatOfTheAddress) {
  const std::vector<RdmaPort> ports = {Port("front0", "10.0.0.1"), Port("mlx5_0", "10.1.0.1"),
                                       Port("mlx5_1", "10.2.0.1"), Port("mlx5_2", "", false)};
  const auto device = [&](const PortWish& wish) { return ChoosePort(ports, wish)->device; };
  EXPECT_EQ(device({.address = "10.0.0.1", .near = "mlx5_1"}), "mlx5_1");
  EXPECT_EQ(device({.device = "mlx5_0", .address = "10.0.0.1", .near = "mlx5_1"}), "mlx5_0")
      << "a wish is a wish";
  EXPECT_EQ(device({.address = "10.0.0.1", .near = "mlx5_2"}), "front0") << "it is down";
  EXPECT_EQ(device({.address = "10.1.0.1", .near = "mlx5_9"}), "mlx5_0") << "it does not exist";
}

TEST(ChoosePortTest, AnInfiniBandPortIsTakenWithItsLidAndItsLowestGid) {
  RdmaPort port = Port("mlx5_0", "", true, false);
  port.lid = 77;
  port.gids = {Gid(1, "fec0::9", Type::kInfiniBand, ""), Gid(0, "fe80::9", Type::kInfiniBand, "")};
  const auto chosen = ChoosePort({port}, {.address = "10.0.0.1"});
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_FALSE(chosen->ethernet);
  EXPECT_EQ(chosen->lid, 77);
  EXPECT_EQ(chosen->gid.index, 0);
  EXPECT_EQ(ChoosePort({port}, {.gid_index = 1})->gid.index, 1);
  EXPECT_THAT(std::string(ChoosePort({port}, {.gid_index = 5}).status().message()),
              testing::AllOf(HasSubstr("gid_index 5"), HasSubstr("0: fe80::9 (InfiniBand)")));
}

TEST(ChoosePortTest, ErrorsSayWhatThereIs) {
  const auto text = [](absl::Span<const RdmaPort> ports, const PortWish& wish) {
    const auto chosen = ChoosePort(ports, wish);
    EXPECT_EQ(chosen.status().code(), absl::StatusCode::kNotFound);
    return std::string(chosen.status().message());
  };
  EXPECT_THAT(text({}, {}), HasSubstr("no RDMA device"));
  const std::vector<RdmaPort> down = {Port("rxe0", "10.0.0.1", false)};
  EXPECT_THAT(
      text(down, {.device = "mlx5_0"}),
      testing::AllOf(HasSubstr("\"mlx5_0\" does not exist"), HasSubstr("rxe0/1 (Ethernet, DOWN)")));
  EXPECT_THAT(text(down, {}), testing::AllOf(HasSubstr("no active RDMA port"), HasSubstr("DOWN"),
                                             HasSubstr("ip link")));
  const std::vector<RdmaPort> bare = {Port("rxe0", "")};
  EXPECT_THAT(text(bare, {}), testing::AllOf(HasSubstr("rxe0/1: no RoCE v2 GID; there are: none"),
                                             HasSubstr("IP address")));
}

TEST(ReadGidsTest, SkipsEmptyEntriesAndReadsTypesAndDevices) {
  const std::string folder = testing::TempDir() + "/gids";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder + "/gids");
  std::filesystem::create_directories(folder + "/gid_attrs/types");
  std::filesystem::create_directories(folder + "/gid_attrs/ndevs");
  const auto put = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder + "/" + name) << text << "\n";
  };
  put("gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001");
  put("gid_attrs/types/0", "IB/RoCE v1");
  put("gid_attrs/ndevs/0", "eth0");
  put("gids/1", "0000:0000:0000:0000:0000:ffff:0a00:0001");
  put("gid_attrs/types/1", "RoCE v2");
  put("gid_attrs/ndevs/1", "eth0");
  put("gids/2", "0000:0000:0000:0000:0000:0000:0000:0000");
  put("gids/3", "not a GID");
  EXPECT_EQ(DescribeGids(ReadGids(folder, 5)),
            "0: fe80::1 (RoCE v1, eth0); 1: 10.0.0.1 (RoCE v2, eth0)");
}

}  // namespace
}  // namespace dtrain::comm::gid_test
