// Distances on real machines, compared with what `nvidia-smi topo -m` printed there.
#include "launcher/topology/distance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "launcher/topology/bind_ranks.h"
#include "tests/launcher/topology/sysfs_fixture.h"
#include "tests/launcher/topology/topology_files.h"

namespace dtrain::launcher::distance_test {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

// The row of ConnectionMatrix that begins with `name`, without it.
std::vector<std::string> Row(const Topology& topology, const std::string& name) {
  for (const std::vector<std::string>& row : ConnectionMatrix(topology)) {
    if (row.front() == name) {
      return {row.begin() + 1, row.end()};
    }
  }
  ADD_FAILURE() << "no row " << name;
  return {};
}

// The columns of NICs in the row of a GPU.
std::vector<std::string> NicColumns(const Topology& topology, const std::string& gpu) {
  const std::vector<std::string> row = Row(topology, gpu);
  return {row.begin() + static_cast<ptrdiff_t>(topology.gpus.size()), row.end()};
}

// The rows of GPUs 0 to 4 are those of github.com/NVIDIA/nccl-tests/issues/78; GPU 8 is on the
// other processor. Columns: mlx5_0 to mlx5_3 and mlx5_6. The tree is that of the same kind of
// machine in hwloc's tests (nvidiaDGX2.xml).
TEST(Distances, OfADgx2AreThoseOfNvidiaSmi) {
  const auto topology = ReadHwlocFile(FixturePath("dgx2.xml"));
  ASSERT_TRUE(topology.ok()) << topology.status();
  ASSERT_EQ(topology->gpus.size(), 10U);
  ASSERT_EQ(topology->nics.size(), 5U);
  for (const auto& [gpu, classes] :
       {std::pair{"GPU0", "PIX PXB NODE NODE SYS"}, std::pair{"GPU1", "PIX PXB NODE NODE SYS"},
        std::pair{"GPU2", "PXB PIX NODE NODE SYS"}, std::pair{"GPU3", "PXB PIX NODE NODE SYS"},
        std::pair{"GPU4", "NODE NODE PIX PXB SYS"}, std::pair{"GPU8", "SYS SYS SYS SYS PIX"}}) {
    const std::vector<std::string> expected = absl::StrSplit(classes, ' ');
    EXPECT_THAT(NicColumns(*topology, gpu), ElementsAreArray(expected)) << gpu;
  }
}

// As in github.com/NVIDIA/nccl/issues/1505 and, without NVLinks, github.com/rapidsai/ucx-py/issues/
// 749: every GPU reaches its NICs over two switches, the other NICs over the processors.
TEST(Distances, OfADgxA100ByNcclsFileAreThoseOfNvidiaSmi) {
  Topology topology = ReadNcclNode(FixturePath("dgxa100-nccl.xml"));
  ASSERT_EQ(topology.gpus.size(), 2U);
  EXPECT_THAT(Row(topology, "GPU0"), ElementsAre("X", "NV12", "PXB", "SYS", "SYS"));
  EXPECT_THAT(Row(topology, "GPU1"), ElementsAre("NV12", "X", "PXB", "SYS", "SYS"));
  EXPECT_THAT(Row(topology, "mlx5_4"), ElementsAre("SYS", "SYS", "SYS", "X", "PIX"))
      << "two ports of one card";
  for (Gpu& gpu : topology.gpus) {
    gpu.nvlinks_to_switches = 0;
  }
  EXPECT_THAT(Row(topology, "GPU0"), ElementsAre("X", "PXB", "PXB", "SYS", "SYS"));
}

// Eight GPUs without NVLinks in pairs at one switch, two pairs at each root:
// github.com/NVIDIA/nccl/ issues/1439. The addresses are made up.
TEST(Distances, OfAPcieMachineAreThoseOfNvidiaSmi) {
  const SysfsFixture sysfs;
  for (int gpu = 0; gpu < 8; ++gpu) {
    const std::string root = gpu < 4 ? "00" : "80";
    const std::string port = absl::StrCat("0000:", root, ":0", 1 + gpu % 4 / 2, ".0");
    const std::string bus = absl::StrCat(gpu < 4 ? "1" : "9", 4 * (gpu % 4 / 2));
    const std::string up = absl::StrCat("0000:", bus, ":00.0");
    const std::string down = absl::StrCat("0000:", bus, ":0", 1 + gpu % 2, ".0");
    const std::string device = absl::StrCat("0000:", gpu < 4 ? "2" : "a", gpu % 4, ":00.0");
    const std::string path =
        absl::StrCat("pci0000:", root, "/", port, "/", up, "/", down, "/", device);
    sysfs.AddPci(path, gpu < 4 ? 0 : 1);
    sysfs.Write("devices/" + path + "/class", "0x030200");
    sysfs.Write("devices/" + path + "/vendor", "0x10de");
  }
  const auto topology = ReadSysfsRoot(sysfs.root());
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_THAT(Row(*topology, "GPU0"),
              ElementsAre("X", "PIX", "PHB", "PHB", "SYS", "SYS", "SYS", "SYS"));
  EXPECT_THAT(Row(*topology, "GPU2"),
              ElementsAre("PHB", "PHB", "X", "PIX", "SYS", "SYS", "SYS", "SYS"));
  EXPECT_THAT(Row(*topology, "GPU7"),
              ElementsAre("SYS", "SYS", "SYS", "SYS", "PHB", "PHB", "PIX", "X"));
}

// Azure's files put each GPU of NDv5 at one switch with its NIC; of NDv4 two of each are at one. An
// NDv2's GPUs have PCI domains of their own, and so roots of their own.
TEST(Distances, OfAzuresNodesFollowTheirFiles) {
  if (CorpusFolder().empty()) {
    GTEST_SKIP() << kNoCorpus;
  }
  const auto nics = [](const char* name, const char* gpu) {
    return NicColumns(ReadNcclNode(absl::StrCat(CorpusFolder(), "/azure/", name, "-topo.xml")),
                      gpu);
  };
  EXPECT_THAT(nics("ndv5", "GPU0"),
              ElementsAre("PIX", "NODE", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"));
  EXPECT_THAT(nics("ndv4", "GPU2"),
              ElementsAre("PIX", "PIX", "SYS", "SYS", "SYS", "SYS", "SYS", "SYS"));
  EXPECT_THAT(nics("ndv2", "GPU0"), ElementsAre("NODE"));
  EXPECT_THAT(nics("ndv2", "GPU7"), ElementsAre("SYS"));
}

TEST(Distances, WhatTheSourceDoesNotSayIsUnknown) {
  EXPECT_EQ(DistanceBetween({}, -1, {}, -1), PciDistance::kUnknown);
  EXPECT_EQ(DistanceBetween({"0000:01:00.0"}, 0, {"0000:02:00.0"}, -1), PciDistance::kUnknown);
  // One NUMA node and one PCI domain, and the roots have no names: either class may be right.
  EXPECT_STREQ(PciDistanceName(DistanceBetween({"0000:01:00.0"}, 0, {"0000:02:00.0"}, 0)),
               "PHB/NODE");
  EXPECT_EQ(DistanceBetween({"0001:01:00.0"}, 0, {"0002:01:00.0"}, 0), PciDistance::kSameNuma);
}

// Pairs that a bridge of NVLinks joins across the order of addresses (0-3, 1-2) become neighbours.
TEST(BindRanks, NeighboursInRankAreJoinedByNvlinksWhereSomeGpusAre) {
  Topology topology;
  for (int i = 0; i < 4; ++i) {
    topology.cores.push_back({0, 0, {i}});
    Gpu& gpu = topology.gpus.emplace_back();
    gpu.index = i;
    gpu.pci = absl::StrCat("0000:0", i, ":00.0");
    gpu.numa = 0;
    gpu.pci_path = {"pci0000:00", absl::StrCat("port", i), gpu.pci};
    gpu.nvlinks = {{3 - i, 4}};
  }
  topology.numa_nodes = {{0, 1}};
  const auto plan = BindRanks(topology, 4);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<int> gpus;
  for (const RankBinding& rank : plan->ranks) {
    gpus.push_back(rank.gpu);
    EXPECT_EQ(rank.memory_node, -1) << "there is one NUMA node";
  }
  EXPECT_THAT(gpus, ElementsAre(0, 3, 1, 2));
}

TEST(BindRanks, MemoryComesFromTheNumaNodeOfTheRanksCores) {
  const auto topology = ReadHwlocFile(FixturePath("dgx2.xml"));
  ASSERT_TRUE(topology.ok()) << topology.status();
  const auto memory = [&topology](int ranks) {
    const auto plan = BindRanks(*topology, ranks);
    EXPECT_TRUE(plan.ok()) << plan.status();
    std::vector<int> nodes;
    for (const RankBinding& rank : plan->ranks) {
      nodes.push_back(rank.memory_node);
    }
    return nodes;
  };
  EXPECT_THAT(memory(2), ElementsAre(0, 0)) << "both have a GPU there";
  Topology no_gpus = *topology;
  no_gpus.gpus.clear();
  const auto one = BindRanks(no_gpus, 1);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->ranks[0].memory_node, -1) << "its cores are on both";
  const auto two = BindRanks(no_gpus, 2);
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(two->ranks[1].memory_node, 1);
}

}  // namespace
}  // namespace dtrain::launcher::distance_test
