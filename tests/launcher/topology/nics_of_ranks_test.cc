// The NIC of each rank on nodes of real clusters: Azure nodes by their NCCL topology files, and an
// H100 node by its /sys/class/infiniband.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/topology/bind_ranks.h"
#include "launcher/topology/distance.h"
#include "launcher/topology/topology.h"
#include "tests/launcher/topology/sysfs_fixture.h"
#include "tests/launcher/topology/topology_files.h"

namespace dtrain::launcher::nics_of_ranks_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

NicPort ActivePort(double rate_gbps, const std::string& link_layer) {
  NicPort port;
  port.state = "ACTIVE";
  port.rate_gbps = rate_gbps;
  port.link_layer = link_layer;
  return port;
}

Nic MakeNic(const std::string& name, int numa, std::vector<std::string> path, double rate_gbps,
            const std::string& link_layer = "InfiniBand") {
  Nic nic;
  nic.name = name;
  nic.pci = path.empty() ? "" : path.back();
  nic.numa = numa;
  nic.pci_path = std::move(path);
  nic.ports = {ActivePort(rate_gbps, link_layer)};
  return nic;
}

// A node as NCCL's topology file describes it, with names for its NICs. A virtual machine's sysfs
// shows no bridges, and each device in a domain of its own: then only NUMA nodes tell which devices
// are near (`bridges` false).
Topology ReadNode(const std::string& path, bool bridges) {
  Topology topology = ReadNcclNode(path);
  for (Nic& nic : topology.nics) {
    nic.name = "mlx5_" + nic.pci.substr(0, 4);
    nic.ports = {ActivePort(400, "InfiniBand")};
    nic.pci_path = bridges ? nic.pci_path : std::vector<std::string>{"pci" + nic.pci, nic.pci};
  }
  for (Gpu& gpu : topology.gpus) {
    gpu.pci_path = bridges ? gpu.pci_path : std::vector<std::string>{"pci" + gpu.pci, gpu.pci};
  }
  return topology;
}

std::vector<std::string> NicsOf(const Topology& topology, int ranks) {
  const auto plan = BindRanks(topology, ranks);
  EXPECT_TRUE(plan.ok()) << plan.status();
  std::vector<std::string> nics;
  for (const RankBinding& rank : plan->ranks) {
    nics.push_back(rank.nic);
  }
  return nics;
}

class NicsOfRealNodes : public ::testing::Test {
 protected:
  void SetUp() override {
    if (CorpusFolder().empty()) {
      GTEST_SKIP() << kNoCorpus;
    }
  }
};

TEST_F(NicsOfRealNodes, EachOfEightGpusHasANicOfItsOwnAtItsSwitchOrNumaNode) {
  for (const char* const name : {"ndv4", "ndv5"}) {
    for (const bool bridges : {true, false}) {
      const Topology topology =
          ReadNode(absl::StrCat(CorpusFolder(), "/azure/", name, "-topo.xml"), bridges);
      ASSERT_EQ(topology.gpus.size(), 8U) << name;
      ASSERT_EQ(topology.nics.size(), 8U) << name;
      const auto plan = BindRanks(topology, 8);
      ASSERT_TRUE(plan.ok()) << plan.status();
      std::set<std::string> used;
      for (const RankBinding& rank : plan->ranks) {
        const Gpu& gpu = topology.gpus.at(static_cast<size_t>(rank.gpu));
        const auto nic = std::find_if(topology.nics.begin(), topology.nics.end(),
                                      [&](const Nic& each) { return each.name == rank.nic; });
        ASSERT_NE(nic, topology.nics.end()) << name << " rank " << rank.local_rank;
        EXPECT_EQ(DistanceBetween(gpu.pci_path, gpu.numa, nic->pci_path, nic->numa),
                  bridges ? PciDistance::kSameSwitch : PciDistance::kSameNuma)
            << name << " rank " << rank.local_rank;
        used.insert(rank.nic);
      }
      EXPECT_EQ(used.size(), 8U) << name << ": no two ranks share one";
    }
  }
}

TEST_F(NicsOfRealNodes, ANodeWithOneNicGivesItToAllRanksAndOneWithoutGivesNone) {
  const std::string azure = CorpusFolder() + "/azure/";
  EXPECT_THAT(NicsOf(ReadNode(azure + "ndv2-topo.xml", true), 8), Each("mlx5_0101"));
  EXPECT_THAT(NicsOf(ReadNode(azure + "ncv4-topo.xml", true), 4), Each(IsEmpty()));
}

// A node with eight InfiniBand ports of 400 Gb/s, and an Ethernet bond of half that rate for other
// traffic.
TEST_F(NicsOfRealNodes, TheFrontEndOfAnH100NodeIsNoRanks) {
  const SysfsFixture sysfs;
  std::filesystem::create_directories(sysfs.root() + "/class");
  std::filesystem::create_directory_symlink(CorpusFolder() + "/gpud/sys-class-infiniband-h100.0",
                                            sysfs.root() + "/class/infiniband");
  Topology topology;
  topology.nics = ReadNics(sysfs.root(), &topology.notes);
  ASSERT_EQ(topology.nics.size(), 9U);
  for (int core = 0; core < 32; ++core) {
    topology.cores.push_back({0, 0, {core}});
  }
  std::map<std::string, int> uses;
  for (const std::string& nic : NicsOf(topology, 16)) {
    ++uses[nic];
  }
  EXPECT_EQ(uses.size(), 8U);
  EXPECT_EQ(uses.count("mlx5_bond_0"), 0U);
  for (const auto& [nic, count] : uses) {
    EXPECT_EQ(count, 2) << nic;
  }
}

// Two GPUs on two NUMA nodes.
Topology TwoGpus() {
  Topology topology;
  for (int i = 0; i < 2; ++i) {
    for (int core = 0; core < 4; ++core) {
      topology.cores.push_back({0, i, {4 * i + core}});
    }
    Gpu gpu;
    gpu.index = i;
    gpu.pci = absl::StrCat("0000:0", i, ":00.0");
    gpu.numa = i;
    gpu.pci_path = {absl::StrCat("pci0000:0", i), absl::StrCat("bridge", i), gpu.pci};
    topology.gpus.push_back(std::move(gpu));
  }
  return topology;
}

TEST(NicsOfRanks, ASlowNicBesideTheGpuIsNotTakenForAFastOneFarAway) {
  Topology topology = TwoGpus();
  topology.nics = {MakeNic("front0", 0, {"pci0000:00", "bridge0", "0000:00:01.0"}, 25, "Ethernet"),
                   MakeNic("fast0", 1, {"pci0000:01", "bridge1", "0000:01:01.0"}, 400, "Ethernet")};
  EXPECT_THAT(NicsOf(topology, 2), ElementsAre("fast0", "fast0"));
  topology.nics[0].ports[0].rate_gbps = 400;
  EXPECT_THAT(NicsOf(topology, 2), ElementsAre("front0", "fast0")) << "as fast and nearer";
  topology.nics[1].ports[0].state = "DOWN";
  EXPECT_THAT(NicsOf(topology, 2), ElementsAre("front0", "front0"));
}

TEST(NicsOfRanks, AllUseOneKindOfLinkAndEthernetOnlyWithAnAddressOfRoce) {
  Topology topology = TwoGpus();
  topology.nics = {MakeNic("ib0", 0, {}, 200), MakeNic("ib1", 1, {}, 200),
                   MakeNic("roce1", 1, {"pci0000:01", "bridge1", "x"}, 200, "Ethernet")};
  EXPECT_THAT(NicsOf(topology, 2), ElementsAre("ib0", "ib1"));
  topology.nics = {MakeNic("roce0", 0, {}, 200, "Ethernet"),
                   MakeNic("roce1", 1, {}, 200, "Ethernet")};
  topology.nics[0].ports[0].gids = {{0, "fe80::1", "IB/RoCE v1", "eth0"}};
  EXPECT_THAT(NicsOf(topology, 2), ElementsAre("roce1", "roce1"));
  topology.nics[0].ports[0].gids.push_back({1, "::ffff:10.0.0.1", "RoCE v2", "eth0"});
  EXPECT_THAT(NicsOf(topology, 2), ElementsAre("roce0", "roce1"));
}

}  // namespace
}  // namespace dtrain::launcher::nics_of_ranks_test
