// Machines by hwloc's XML and by a copy of /sys.
#include "tests/launcher/topology/topology_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <array>
#include <cerrno>
#include <filesystem>

#include "base/dl/verbs.h"
#include "launcher/topology/format.h"
#include "launcher/topology/sysfs.h"
#include "launcher/topology/topology.h"
#include "tests/launcher/topology/sysfs_fixture.h"

namespace dtrain::launcher::topology_files_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(ReadHwlocFile, ReadsCachesTheTreeGpusAndNics) {
  const auto topology = ReadHwlocFile(FixturePath("dgx2.xml"));
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->host, "dgx2");
  EXPECT_EQ(topology->packages, 2);
  EXPECT_THAT(topology->cores, SizeIs(4));
  EXPECT_EQ(topology->cpu_kind.vendor, "GenuineIntel");
  EXPECT_EQ(topology->cpu_kind.model, 85);
  EXPECT_THAT(topology->numa_nodes[1].cpus, ElementsAre(24, 25));
  ASSERT_THAT(topology->caches, SizeIs(6));
  EXPECT_EQ(topology->caches.back().level, 3);
  EXPECT_EQ(topology->caches.back().bytes, 34603008U);
  EXPECT_THAT(topology->caches.back().cpus, ElementsAre(24, 25));
  ASSERT_THAT(topology->gpus, SizeIs(10));
  const Gpu& gpu = topology->gpus[0];
  EXPECT_EQ(gpu.name, "Tesla V100-SXM3-32GB-H");
  EXPECT_THAT(gpu.pci_path,
              ElementsAre("pci0000:2b", "0000:2b:00.0", "0000:2c:00.0", "0000:2d:04.0",
                          "0000:32:00.0", "0000:33:00.0", "0000:34:00.0"));
  EXPECT_FALSE(gpu.nvlinks_known);
  ASSERT_THAT(topology->nics, SizeIs(5));
  EXPECT_EQ(topology->nics[0].name, "mlx5_0");
  EXPECT_EQ(topology->nics[0].netdev, "ib0");
  ASSERT_THAT(topology->nics[0].ports, SizeIs(1));
  EXPECT_EQ(topology->nics[0].ports[0].state, "ACTIVE");
  EXPECT_EQ(topology->nics[0].ports[0].link_layer, "InfiniBand");
  const std::string text = FormatTopology(*topology);
  EXPECT_THAT(text, HasSubstr("L3 33.0 MiB x 2, each for 2 CPUs; L2 1.0 MiB x 4, each for 1 CPU"));
  EXPECT_THAT(text, HasSubstr("0000:34:00.0 GPU, 15.8 GB/s"))
      << "which may be 16 lanes of generation 3 or 8 of generation 4";
}

TEST(ReadHwlocFile, AFileThatIsNoneIsRefusedByName) {
  const SysfsFixture files;
  files.Write("bad.xml", "<system version=\"1\"/>");
  const auto bad = ReadHwlocFile(files.root() + "/bad.xml");
  EXPECT_TRUE(absl::IsInvalidArgument(bad.status())) << bad.status();
  EXPECT_THAT(std::string(bad.status().message()), HasSubstr("bad.xml is no topology that hwloc"));
  const auto missing = ReadHwlocFile(files.root() + "/none.xml");
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("none.xml"));
}

// Two processors of two cores with two threads each, as the kernel shows them.
TEST(ReadSysfsRoot, ReadsCoresCachesAndNumaNodes) {
  const SysfsFixture sysfs;
  for (int cpu = 0; cpu < 8; ++cpu) {
    const std::string path = absl::StrCat("devices/system/cpu/cpu", cpu, "/");
    const int package = cpu / 2 % 2;
    sysfs.Write(path + "topology/physical_package_id", std::to_string(package));
    sysfs.Write(path + "topology/core_id", std::to_string(cpu % 2));
    sysfs.Write(path + "cache/index3/level", "3");
    sysfs.Write(path + "cache/index3/type", "Unified");
    sysfs.Write(path + "cache/index3/size", "32768K");
    sysfs.Write(path + "cache/index3/coherency_line_size", "64");
    sysfs.Write(path + "cache/index3/shared_cpu_list", package == 0 ? "0-1,4-5" : "2-3,6-7");
  }
  sysfs.Write("devices/system/cpu/online", "0-7");
  for (const auto& [node, cpus] : {std::pair{"node0", "0-1,4-5"}, std::pair{"node1", "2-3,6-7"}}) {
    sysfs.Write(absl::StrCat("devices/system/node/", node, "/cpulist"), cpus);
    sysfs.Write(absl::StrCat("devices/system/node/", node, "/meminfo"),
                "Node 0 MemTotal:       1048576 kB\nNode 0 MemFree:  5 kB");
  }
  const auto topology = ReadSysfsRoot(sysfs.root());
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->packages, 2);
  ASSERT_THAT(topology->cores, SizeIs(4));
  EXPECT_THAT(topology->cores[0].cpus, ElementsAre(0, 4));
  EXPECT_EQ(topology->cores[2].package, 1);
  EXPECT_EQ(topology->cores[2].numa, 1);
  EXPECT_EQ(topology->memory_bytes, 2ULL << 30);
  ASSERT_THAT(topology->caches, SizeIs(2));
  EXPECT_EQ(topology->caches[1].bytes, 32ULL << 20);
  EXPECT_THAT(topology->caches[1].cpus, ElementsAre(2, 3, 6, 7));
  EXPECT_EQ(topology->host, "") << "nothing of this machine";
  sysfs.Write("devices/system/node/node0/cpulist", "4-1");
  EXPECT_THAT(std::string(ReadSysfsRoot(sysfs.root()).status().message()),
              testing::AllOf(HasSubstr("node0/cpulist"), HasSubstr("\"4-1\"")));
}

// A copy of a real node's /sys/class/infiniband holds neither cores nor a PCI tree.
TEST(ReadSysfsRoot, ReadsThePortsOfARealNodeAndLeavesTheRestUnknown) {
  if (CorpusFolder().empty()) {
    GTEST_SKIP() << kNoCorpus;
  }
  const SysfsFixture sysfs;
  std::filesystem::create_directories(sysfs.root() + "/class");
  std::filesystem::create_directory_symlink(CorpusFolder() + "/gpud/sys-class-infiniband-h100.0",
                                            sysfs.root() + "/class/infiniband");
  const auto topology = ReadSysfsRoot(sysfs.root());
  ASSERT_TRUE(topology.ok()) << topology.status();
  ASSERT_THAT(topology->nics, SizeIs(9));
  const NicPort& port = topology->nics[0].ports.at(0);
  EXPECT_EQ(port.state, "ACTIVE");
  EXPECT_EQ(port.phys_state, "LinkUp");
  EXPECT_EQ(port.rate_gbps, 400);
  EXPECT_EQ(port.errors.count("symbol_error"), 1U);
  EXPECT_EQ(port.errors.count("out_of_sequence"), 1U);
  EXPECT_EQ(port.errors.count("port_rcv_data"), 0U) << "traffic is no error";
  const Json json = TopologyJson(*topology);
  EXPECT_EQ(json["cores"], "unknown");
  EXPECT_EQ(json["nics"][0]["numa"], "unknown");
  EXPECT_EQ(json["nics"][0]["pci"], "unknown");
  EXPECT_EQ(json["nics"][0]["ports"][0]["mtu"], "unknown");
}

TEST(ReadSysfsRoot, AFolderThatIsNoneIsRefused) {
  EXPECT_TRUE(absl::IsNotFound(ReadSysfsRoot("/no/such/folder").status()));
}

TEST(ReadNics, ReadsErrorsTheGuidAndTheTrafficClass) {
  const SysfsFixture sysfs;
  sysfs.AddPci("pci0000:00/0000:00:01.0/0000:1a:00.0", 0);
  sysfs.AddNic("mlx5_0", "pci0000:00/0000:00:01.0/0000:1a:00.0", "4: ACTIVE", "100 Gb/sec (4X EDR)",
               "Ethernet");
  const std::string nic = "class/infiniband/mlx5_0";
  sysfs.Write(nic + "/ports/1/phys_state", "5: LinkUp");
  sysfs.Write(nic + "/ports/1/counters/link_downed", "3");
  sysfs.Write(nic + "/ports/1/hw_counters/out_of_sequence", "0");
  sysfs.Write(nic + "/ports/1/hw_counters/lifespan", "10");
  sysfs.Write(nic + "/node_guid", "a088:c203:0015:1234");
  sysfs.Write(nic + "/tc/1/traffic_class", "Global tclass=106");
  std::vector<std::string> notes;
  const Nic read = ReadNics(sysfs.root(), &notes).at(0);
  EXPECT_THAT(read.ports.at(0).errors,
              ElementsAre(std::pair("link_downed", 3U), std::pair("out_of_sequence", 0U)));
  EXPECT_EQ(read.guid, "0xa088c20300151234");
  EXPECT_EQ(read.traffic_class, 106);
}

// Two devices, of which this user may open the first.
VerbsFunctions TwoDevices() {
  static ibv_device first;
  static ibv_device second;
  static std::array<ibv_device*, 3> list = {&first, &second, nullptr};
  static ibv_context context;
  VerbsFunctions f;
  f.get_device_list = [](int* count) {
    *count = 2;
    return list.data();
  };
  f.free_device_list = [](ibv_device**) {};
  f.get_device_name = [](ibv_device* device) { return device == &first ? "mlx5_0" : "mlx5_1"; };
  f.open_device = [](ibv_device* device) { return device == &first ? &context : nullptr; };
  f.close_device = [](ibv_context*) { return 0; };
  f.query_port = [](ibv_context*, uint8_t port, ibv_port_attr* attr) {
    attr->active_mtu = IBV_MTU_4096;
    return port == 1 ? 0 : EINVAL;
  };
  return f;
}

TEST(ReadNics, TheMtuOfRdmaPacketsComesFromTheDeviceWhereItCanBeOpened) {
  const SysfsFixture sysfs;
  for (const char* const name : {"mlx5_0", "mlx5_1"}) {
    sysfs.AddNic(name, "pci0000:00/0000:00:01.0/0000:1a:00.0", "4: ACTIVE", "100 Gb/sec (4X EDR)",
                 "Ethernet");
  }
  std::vector<std::string> notes;
  const Verbs verbs(TwoDevices());
  const std::vector<Nic> nics = ReadNics(sysfs.root(), &notes, &verbs);
  ASSERT_THAT(nics, SizeIs(2));
  EXPECT_EQ(nics[0].ports.at(0).mtu, 4096);
  EXPECT_EQ(nics[1].ports.at(0).mtu, 0);
  EXPECT_EQ(ReadNics(sysfs.root(), &notes)[0].ports.at(0).mtu, 0) << "nobody was asked";
}

TEST(ParseCpuList, ReadsRangesAndRefusesOthers) {
  EXPECT_THAT(*ParseCpuList("0-3,8"), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(*ParseCpuList(""), IsEmpty());
  for (const char* const bad : {"x", "3-1", "1-2-3", "-1", "70000", "0-99999"}) {
    EXPECT_FALSE(ParseCpuList(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace dtrain::launcher::topology_files_test
