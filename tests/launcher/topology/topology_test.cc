// Reading a node (hwloc's synthetic machines, sysfs fixtures, a fake NVML) and binding ranks to it.
#include "launcher/topology/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <set>

#include "base/dl/nvml.h"
#include "base/file.h"
#include "launcher/topology/bind_ranks.h"
#include "launcher/topology/commands.h"
#include "launcher/topology/distance.h"
#include "launcher/topology/doctor.h"
#include "launcher/topology/format.h"
#include "launcher/topology/nccl_topology.h"
#include "tests/launcher/topology/sysfs_fixture.h"
#include "tests/launcher/topology/topology_files.h"

namespace dtrain::launcher::topology_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Topology Synthetic(const std::string& description) {
  TopologyOptions options;
  options.hwloc_synthetic = description;
  options.sysfs_root = "/nowhere";
  options.read_gpus = false;
  auto topology = ReadTopology(options);
  EXPECT_TRUE(topology.ok()) << topology.status();
  return topology.ok() ? *topology : Topology();
}

TEST(ReadTopology, ReadsPackagesCoresAndNumaNodesOfASyntheticMachine) {
  const Topology topology = Synthetic("pack:2 numa:1(memory=1073741824) core:4 pu:2");
  EXPECT_EQ(topology.packages, 2);
  ASSERT_EQ(topology.cores.size(), 8U);
  EXPECT_THAT(topology.cores[5].cpus, ElementsAre(10, 11));
  EXPECT_EQ(topology.cores[5].package, 1);
  EXPECT_EQ(topology.cores[5].numa, 1);
  ASSERT_EQ(topology.numa_nodes.size(), 2U);
  EXPECT_EQ(topology.memory_bytes, 2ULL << 30);
}

TEST(ReadTopology, BadDescriptionsAreRefusedWithAnExample) {
  TopologyOptions options;
  options.hwloc_synthetic = "no machine";
  EXPECT_THAT(std::string(ReadTopology(options).status().message()),
              testing::AllOf(HasSubstr("\"no machine\""), HasSubstr("pack:2")));
  options.hwloc_synthetic = "";
  options.hwloc_xml = "<nothing/>";
  EXPECT_FALSE(ReadTopology(options).ok());
}

TEST(ReadTopology, ThisMachineHasACoreThatThisProcessMayUse) {
  const auto topology = ReadTopology();
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_GE(topology->cores.size(), 1U);
  EXPECT_GT(topology->memory_bytes, 0U);
}

TEST(ReadNics, ReadsPortsAndGidsAndSkipsWhatCannotBeRead) {
  const SysfsFixture sysfs;
  sysfs.AddPci("pci0000:00/0000:00:01.0/0000:1a:00.0", 0);
  sysfs.AddNic("mlx5_0", "pci0000:00/0000:00:01.0/0000:1a:00.0", "4: ACTIVE", "400 Gb/sec (4X NDR)",
               "Ethernet");
  const std::string port = "class/infiniband/mlx5_0/ports/1";
  sysfs.Write(port + "/gids/0", "fe80:0000:0000:0000:0a00:27ff:fe4e:66a1");
  sysfs.Write(port + "/gid_attrs/types/0", "IB/RoCE v1");
  sysfs.Write(port + "/gids/10", "0000:0000:0000:0000:0000:ffff:0a00:0001");
  sysfs.Write(port + "/gid_attrs/types/10", "RoCE v2");
  sysfs.Write(port + "/gid_attrs/ndevs/10", "eth2");
  sysfs.Write(port + "/gids/3", "0000:0000:0000:0000:0000:0000:0000:0000");  // Unset.
  // Reading a folder fails, like reading an entry of another network namespace (there with EINVAL).
  std::filesystem::create_directories(sysfs.root() + "/" + port + "/gids/4");
  sysfs.Write("class/net/eth2/mtu", "9000");
  std::vector<std::string> notes;
  const std::vector<Nic> nics = ReadNics(sysfs.root(), &notes);
  ASSERT_EQ(nics.size(), 1U);
  const Nic& nic = nics[0];
  EXPECT_TRUE(nic.active());
  EXPECT_EQ(nic.pci, "0000:1a:00.0");
  EXPECT_EQ(nic.numa, 0);
  EXPECT_EQ(nic.netdev, "eth2");
  EXPECT_EQ(nic.netdev_mtu, 9000);
  EXPECT_EQ(nic.firmware, "28.39.1002");
  ASSERT_EQ(nic.ports.size(), 1U);
  EXPECT_EQ(nic.ports[0].rate_gbps, 400);
  EXPECT_EQ(nic.ports[0].link_layer, "Ethernet");
  ASSERT_EQ(nic.ports[0].gids.size(), 2U);
  EXPECT_EQ(nic.ports[0].gids[0].type, "IB/RoCE v1");
  EXPECT_EQ(nic.ports[0].gids[1].index, 10) << "numeric order";
  EXPECT_EQ(nic.ports[0].gids[1].netdev, "eth2");
  EXPECT_THAT(notes, IsEmpty());
}

TEST(ReadNics, AMachineWithoutRdmaHasNone) {
  std::vector<std::string> notes;
  EXPECT_THAT(ReadNics("/nowhere", &notes), IsEmpty());
  EXPECT_THAT(notes, IsEmpty());
}

// Four GPUs, two on each of two roots; 0 and 1 are joined by 4 NVLinks, the others go to switches.
nvml::Functions FourGpus() {
  nvml::Functions f = {};
  f.init = [] { return nvml::kSuccess; };
  f.shutdown = [] { return nvml::kSuccess; };
  f.error_string = [](nvml::Return) { return "error"; };
  f.system_get_driver_version = [](char* text, unsigned length) {
    std::snprintf(text, length, "580.65.06");
    return nvml::kSuccess;
  };
  f.system_get_cuda_driver_version = [](int* version) {
    *version = 13000;
    return nvml::kSuccess;
  };
  f.device_get_count = [](unsigned* count) {
    *count = 4;
    return nvml::kSuccess;
  };
  static const auto index = [](nvml::Device* device) {
    return static_cast<int>(reinterpret_cast<intptr_t>(device)) - 1;
  };
  static const auto write_pci = [](int gpu, nvml::PciInfo* info) {
    constexpr const char* kBuses[] = {"9B", "9D", "1B", "1D"};  // NVML's order is not NUMA order.
    std::snprintf(info->bus_id, sizeof(info->bus_id), "00000000:%s:00.0", kBuses[gpu]);
  };
  f.device_get_handle_by_index = [](unsigned gpu, nvml::Device** device) {
    *device = reinterpret_cast<nvml::Device*>(static_cast<intptr_t>(gpu) + 1);
    return nvml::kSuccess;
  };
  f.device_get_name = [](nvml::Device*, char* text, unsigned length) {
    std::snprintf(text, length, "NVIDIA H100 80GB HBM3");
    return nvml::kSuccess;
  };
  f.device_get_uuid = f.device_get_name;
  f.device_get_pci_info = [](nvml::Device* device, nvml::PciInfo* info) {
    write_pci(index(device), info);
    return nvml::kSuccess;
  };
  f.device_get_memory_info = [](nvml::Device*, nvml::Memory* memory) {
    *memory = {80ULL << 30, 80ULL << 30, 0};
    return nvml::kSuccess;
  };
  f.device_get_nvlink_state = [](nvml::Device*, unsigned link, nvml::EnableState* state) {
    *state = nvml::kEnabled;
    return link < 4 ? nvml::kSuccess : nvml::kInvalidArgument;
  };
  f.device_get_nvlink_remote_pci_info = [](nvml::Device* device, unsigned, nvml::PciInfo* info) {
    if (index(device) < 2) {
      write_pci(1 - index(device), info);
    } else {
      std::snprintf(info->bus_id, sizeof(info->bus_id), "00000000:C1:00.0");
    }
    return nvml::kSuccess;
  };
  return f;
}

class GpuNode : public testing::Test {
 protected:
  void SetUp() override {
    // Each root has a switch with two GPUs and a NIC; NIC 1's port is down, and NIC 2 is directly
    // on root 1.
    sysfs_.AddPci("pci0000:00/0000:00:01.0/0000:1b:00.0", 0);
    sysfs_.AddPci("pci0000:00/0000:00:01.0/0000:1d:00.0", 0);
    sysfs_.AddPci("pci0000:80/0000:80:01.0/0000:9b:00.0", 1);
    sysfs_.AddPci("pci0000:80/0000:80:01.0/0000:9d:00.0", 1);
    for (const auto& [name, path, state] :
         {std::tuple{"mlx5_0", "pci0000:00/0000:00:01.0/0000:1a:00.0", "4: ACTIVE"},
          std::tuple{"mlx5_1", "pci0000:80/0000:80:01.0/0000:9a:00.0", "1: DOWN"},
          std::tuple{"mlx5_2", "pci0000:80/0000:80:03.0/0000:a1:00.0", "4: ACTIVE"}}) {
      sysfs_.AddPci(path, path[8] == '0' ? 0 : 1);
      sysfs_.AddNic(name, path, state, "200 Gb/sec (4X HDR)", "InfiniBand");
    }
    nvml_ = *Nvml::Over(FourGpus());
    TopologyOptions options;
    options.hwloc_synthetic = "pack:2 numa:1 core:8 pu:2";
    options.sysfs_root = sysfs_.root();
    options.nvml = nvml_.get();
    auto topology = ReadTopology(options);
    ASSERT_TRUE(topology.ok()) << topology.status();
    topology_ = *std::move(topology);
  }
  SysfsFixture sysfs_;
  std::unique_ptr<Nvml> nvml_;
  Topology topology_;
};

TEST_F(GpuNode, GpusCarryTheirNumaNodeAndNvlinks) {
  ASSERT_EQ(topology_.gpus.size(), 4U);
  EXPECT_EQ(topology_.gpus[0].pci, "0000:9b:00.0");
  EXPECT_EQ(topology_.gpus[0].numa, 1);
  EXPECT_THAT(topology_.gpus[0].nvlinks, ElementsAre(std::pair(1, 4)));
  EXPECT_EQ(topology_.gpus[2].nvlinks_to_switches, 4);
  EXPECT_EQ(topology_.driver_version, "580.65.06");
  EXPECT_EQ(topology_.driver_cuda, 13000);
}

TEST_F(GpuNode, DistancesAreThoseOfThePciTree) {
  const auto distance = [&](int gpu, int nic) {
    const Gpu& g = topology_.gpus[static_cast<size_t>(gpu)];
    const Nic& n = topology_.nics[static_cast<size_t>(nic)];
    return std::string(PciDistanceName(DistanceBetween(g.pci_path, g.numa, n.pci_path, n.numa)));
  };
  EXPECT_EQ(distance(2, 0), "PIX");
  EXPECT_EQ(distance(0, 2), "PHB");
  EXPECT_EQ(distance(0, 0), "SYS");
  EXPECT_EQ(DistanceBetween({}, 1, {}, 1), PciDistance::kSameNuma);
}

TEST_F(GpuNode, RanksTakeGpusInBusOrderWithCoresAndNicNearThem) {
  const auto plan = BindRanks(topology_, 4);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<int> gpus;
  std::vector<int> numas;
  std::vector<std::string> nics;
  for (const RankBinding& rank : plan->ranks) {
    gpus.push_back(rank.gpu);
    numas.push_back(rank.numa);
    nics.push_back(rank.nic);
    EXPECT_EQ(rank.cpus.size(), 8U) << "4 cores with 2 threads each";
  }
  EXPECT_THAT(gpus, ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(numas, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(nics, ElementsAre("mlx5_0", "mlx5_0", "mlx5_2", "mlx5_2")) << "mlx5_1 is down";
  EXPECT_FALSE(plan->gpus_shared);
}

TEST_F(GpuNode, MoreRanksThanGpusShareThemAndThePlanSaysSo) {
  const auto plan = BindRanks(topology_, 8);
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(plan->gpus_shared);
  EXPECT_EQ(plan->ranks[0].gpu, 2);
  EXPECT_EQ(plan->ranks[1].gpu, 2);
  EXPECT_EQ(plan->ranks[7].gpu, 1);
  EXPECT_THAT(FormatRankPlan(topology_, *plan), HasSubstr("8 ranks share 4 GPUs"));
}

TEST_F(GpuNode, TheTablesShowWhatWasRead) {
  const std::string text = FormatTopology(topology_);
  EXPECT_THAT(text, HasSubstr("NV4 to GPU 1"));
  EXPECT_THAT(text, HasSubstr("NV4 to switches"));
  EXPECT_THAT(text, HasSubstr("mlx5_0  SYS   SYS   PIX   PIX   X"));
  EXPECT_THAT(text, HasSubstr("GPU2    SYS   SYS   X     NV4"));
  EXPECT_THAT(text, HasSubstr("0-15"));
  for (size_t start = 0; start < text.size();) {
    const size_t end = text.find('\n', start);
    EXPECT_NE(text[end - 1], ' ') << "trailing blank";
    start = end + 1;
  }
  const Json json = TopologyJson(topology_);
  EXPECT_EQ(json["gpus"][0]["nvlinks_by_gpu"]["1"], 4);
  EXPECT_EQ(json["nics"][2]["distance_by_gpu"]["0"], "PHB");
  EXPECT_EQ(json["cores"].size(), 16U);
  EXPECT_TRUE(ParseJson(DumpJson(json), "topo").ok());
}

// Every small machine and number of ranks: shares are equal, disjoint and on one NUMA node where
// that is possible.
TEST(BindRanks, SharesAreDisjointEqualAndLocalOnEverySmallMachine) {
  for (int packages = 1; packages <= 3; ++packages) {
    for (int cores = 1; cores <= 5; ++cores) {
      const Topology topology = Synthetic("pack:" + std::to_string(packages) +
                                          " numa:1 core:" + std::to_string(cores) + " pu:2");
      for (int ranks = 1; ranks <= 9; ++ranks) {
        SCOPED_TRACE(testing::Message() << packages << " x " << cores << ", " << ranks);
        const auto plan = BindRanks(topology, ranks);
        ASSERT_TRUE(plan.ok()) << plan.status();
        const int total = packages * cores;
        EXPECT_EQ(plan->cores_shared, ranks > total);
        std::set<int> used;
        size_t bound = 0;
        for (const RankBinding& rank : plan->ranks) {
          EXPECT_EQ(rank.cpus.size(), plan->ranks[0].cpus.size());
          EXPECT_FALSE(rank.cpus.empty());
          used.insert(rank.cpus.begin(), rank.cpus.end());
          bound += rank.cpus.size();
          if (ranks % packages == 0 && ranks <= total) {
            std::set<int> numas;
            for (const Core& core : topology.cores) {
              for (const int cpu : rank.cpus) {
                if (cpu == core.cpus[0]) {
                  numas.insert(core.numa);
                }
              }
            }
            EXPECT_THAT(numas, ElementsAre(rank.numa));
          }
        }
        if (!plan->cores_shared) {
          EXPECT_EQ(used.size(), bound) << "a CPU is given twice";
        }
      }
    }
  }
}

// A quota says how much time, not which cores.
TEST(BindRanks, ACpuQuotaBelowTheCoresGivesThreadsAndBindsNobody) {
  Topology topology = Synthetic("pack:1 numa:1 core:8 pu:2");
  const auto threads = [&](double quota, int ranks) {
    topology.cpu_quota = quota;
    const auto plan = BindRanks(topology, ranks);
    EXPECT_TRUE(plan.ok());
    EXPECT_EQ(plan->cores_by_quota, quota < 8);
    for (const RankBinding& rank : plan->ranks) {
      EXPECT_EQ(rank.cpus.empty(), quota < 8);
    }
    return plan->ranks.back().cores;
  };
  EXPECT_EQ(threads(kNoCpuQuota, 2), 4);
  EXPECT_EQ(threads(9.5, 2), 4);
  EXPECT_EQ(threads(6, 2), 3);
  EXPECT_EQ(threads(0.5, 1), 1);
  EXPECT_EQ(threads(0.5, 2), 1);
  topology.cpu_quota = 2.5;
  EXPECT_THAT(FormatTopology(topology), HasSubstr("8 cores, a CPU quota of 2.50 CPUs, "));
  EXPECT_THAT(FormatRankPlan(topology, *BindRanks(topology, 1)),
              HasSubstr("ranks are not bound to cores, and each computes with 2 threads"));
  EXPECT_EQ(TopologyJson(topology)["cpu_quota"], 2.5);
}

TEST(ReadTopology, ReadsTheQuotaAndTheMemoryOfThisMachineBelowTheGivenRoots) {
  const SysfsFixture files;
  files.Write("proc/self/cgroup", "0::/pod/job\n");
  files.Write("proc/meminfo", "MemTotal:  2048 kB\nMemAvailable: 1024 kB\n");
  files.Write("fs/cgroup/pod/cpu.max", "50000 100000\n");
  TopologyOptions options;
  options.sysfs_root = files.root();
  options.proc_root = files.root() + "/proc";
  options.read_gpus = false;
  const auto topology = ReadTopology(options);
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->cpu_quota, 0.5);
  EXPECT_EQ(topology->memory_bytes, 2048U * 1024);
  const DoctorFacts facts =
      ReadDoctorFacts({.torch = {},
                       .plugin_folder = "",
                       .roots = {options.proc_root, files.root() + "/fs/cgroup"}});
  EXPECT_EQ(facts.memory_total_bytes, topology->memory_bytes) << "topo and doctor agree";
}

TEST(BindRanks, NoRankIsRefused) {
  const Topology topology = Synthetic("pack:1 core:2 pu:1");
  EXPECT_EQ(BindRanks(topology, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BindRanks({}, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Format, CpuListsAndBytesReadAsPeopleWriteThem) {
  EXPECT_EQ(FormatCpuList({8, 0, 1, 2, 3}), "0-3,8");
  EXPECT_EQ(FormatCpuList({}), "");
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(80ULL << 30), "80.0 GiB");
}

TEST(TopoMain, PrintsThisMachineAndRefusesNonsenseWith64) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(TopoMain({"--json", "--nproc-per-node", "2"}), 0);
  const auto json = ParseJson(testing::internal::GetCapturedStdout(), "topo");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ((*json)["rank_plan"]["ranks"].size(), 2U);
  testing::internal::CaptureStdout();
  EXPECT_EQ(TopoMain({}), 0);
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("cores"));
  EXPECT_TRUE((*json)["caches"].is_array() || (*json)["caches"] == "unknown");
  testing::internal::CaptureStderr();
  EXPECT_EQ(TopoMain({"--nproc-per-node", "0"}), 64);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("--nproc-per-node"));
}

// Gives what the command prints to stdout with these arguments, and expects it to end with 0.
std::string TopoOutput(const std::vector<std::string>& arguments) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(TopoMain(arguments), 0);
  return testing::internal::GetCapturedStdout();
}

// Gives what it prints to stderr, and expects it to end with 64.
std::string TopoError(const std::vector<std::string>& arguments) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(TopoMain(arguments), 64);
  return testing::internal::GetCapturedStderr();
}

TEST(TopoMain, ShowsTheMachineOfAFileAndPlansForIt) {
  const std::string dgx2 = FixturePath("dgx2.xml");
  const auto json =
      ParseJson(TopoOutput({"--json", "--hwloc-xml", dgx2, "--nproc-per-node", "2"}), "topo");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ((*json)["source"], dgx2);
  EXPECT_EQ((*json)["host"], "dgx2");
  EXPECT_EQ((*json)["nics"][1]["distance_by_gpu"]["0"], "PXB");
  EXPECT_EQ((*json)["rank_plan"]["ranks"][0]["nic"], "mlx5_0");
  const std::string nccl = TopoOutput({"--nccl-xml", FixturePath("dgxa100-nccl.xml")});
  EXPECT_THAT(nccl, HasSubstr("PXB"));
  EXPECT_THAT(nccl, HasSubstr("NV12 to switches"));
}

TEST(TopoMain, WritesNcclsFileAsItWasReadOrOfWhatItKnows) {
  const SysfsFixture files;
  const std::string source = FixturePath("dgxa100-nccl.xml");
  const std::string copy = files.root() + "/copy.xml";
  TopoOutput({"--nccl-xml", source, "--write-nccl-xml", copy});
  EXPECT_EQ(*ReadFile(copy), *ReadFile(source));
  const std::string text =
      TopoOutput({"--hwloc-xml", FixturePath("dgx2.xml"), "--write-nccl-xml", "-"});
  const auto element = ParseNcclXml(text, "stdout");
  ASSERT_TRUE(element.ok()) << element.status();
  const auto topology = FromNccl(*element, "stdout");
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->gpus.size(), 10U);
  EXPECT_EQ(NicConnection(topology->gpus[0], topology->nics[0]), "PIX");
  EXPECT_EQ(NicConnection(topology->gpus[0], topology->nics[1]), "PXB");
}

TEST(TopoMain, ShowsSwitchesAndTheVariablesOfAProfile) {
  const SysfsFixture files;
  files.Write("topology.conf", "SwitchName=s1 Nodes=n[1-2]\nSwitchName=top Switches=s1");
  const std::string text = TopoOutput({"--topology-conf", files.root() + "/topology.conf", "--host",
                                       "n2", "--network-profile", "aws-efa"});
  EXPECT_THAT(text, HasSubstr("this node: top.s1.n2"));
  EXPECT_THAT(text, HasSubstr("FI_PROVIDER=efa ("));
  files.Write("bad.conf", "SwitchName=a Switches=b");
  EXPECT_THAT(TopoError({"--topology-conf", files.root() + "/bad.conf"}),
              HasSubstr("bad.conf:1: unknown switch b"));
  EXPECT_THAT(TopoError({"--network-profile", "azur"}), HasSubstr("did you mean azure?"));
}

TEST(TopoMain, InAStepOfSlurmItShowsTheSwitchesOfThisNode) {
  const Environment step = {{"SLURM_TOPOLOGY_ADDR", "s0.s4.10.0.0.7"},
                            {"SLURM_TOPOLOGY_ADDR_PATTERN", "switch.switch.node"}};
  testing::internal::CaptureStdout();
  EXPECT_EQ(TopoMain({}, step), 0);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_THAT(text, HasSubstr("switches (SLURM_TOPOLOGY_ADDR):\n  s0\n    s4: 10.0.0.7\n"));
  EXPECT_THAT(text, HasSubstr("this node: s0.s4.10.0.0.7"));

  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  EXPECT_EQ(TopoMain({"--json", "--topology-conf", "/none/topology.conf"}, step), 0);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("/none/topology.conf"), HasSubstr("those of SLURM_TOPOLOGY_ADDR")));
  const auto json = ParseJson(testing::internal::GetCapturedStdout(), "topo");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ((*json)["cluster"]["this_node"], "s0.s4");
  EXPECT_EQ((*json)["cluster"]["source"], "SLURM_TOPOLOGY_ADDR");

  EXPECT_EQ(TopoMain({"--topology-conf", "/none/topology.conf"}), 64) << "outside of Slurm";
  EXPECT_EQ(TopoMain({}, {{"SLURM_TOPOLOGY_ADDR", "s0..n1"}}), 64);
}

TEST(TopoMain, RankZeroShowsAndWritesTheSwitchesThatWereMeasured) {
  const SysfsFixture files;
  const std::string conf = files.root() + "/switches.conf";
  const Latencies latencies = {{"a", "b", "c"}, {{-1, 5, 20}, {-1, -1, 20}, {-1, -1, -1}}};
  const auto rank_0 = [&](const Environment&) { return std::optional<Latencies>(latencies); };
  testing::internal::CaptureStdout();
  EXPECT_EQ(TopoMain({"--measure", "--host", "c", "--write-topology-conf", conf}, {}, rank_0), 0);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_THAT(text, HasSubstr("hosts at one switch are 5.0 us from each other, others 20.0 us"));
  EXPECT_THAT(text, HasSubstr("this node: measured.measured-2.c"));
  const std::string again = TopoOutput({"--topology-conf", conf, "--host", "b"});
  EXPECT_THAT(again, HasSubstr("this node: measured.measured-1.b"));

  const auto others = [](const Environment&) { return std::optional<Latencies>(); };
  testing::internal::CaptureStdout();
  EXPECT_EQ(TopoMain({"--measure"}, {}, others), 0);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");

  const Latencies same = {{"a", "b", "c"}, {{-1, 5, 5}, {-1, -1, 5}, {-1, -1, -1}}};
  const auto alike = [&](const Environment&) { return std::optional<Latencies>(same); };
  testing::internal::CaptureStdout();
  EXPECT_EQ(TopoMain({"--measure"}, {}, alike), 0);
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("note: switches unknown: the"));
  EXPECT_EQ(TopoMain({"--measure", "--write-topology-conf", conf}, {}, alike), 64);
  EXPECT_EQ(TopoMain({"--measure", "--topology-conf", conf}, {}, rank_0), 64);
}

TEST(TopoMain, RefusesFilesThatAreNoneAndSourcesThatContradict) {
  const std::string dgx2 = FixturePath("dgx2.xml");
  EXPECT_THAT(TopoError({"--nccl-xml", dgx2}), HasSubstr("dgx2.xml"));
  EXPECT_THAT(TopoError({"--hwloc-xml", "/none.xml"}), HasSubstr("/none.xml"));
  EXPECT_THAT(TopoError({"--sysfs", "/none"}), HasSubstr("/none"));
  EXPECT_THAT(TopoError({"--sysfs", "/sys", "--hwloc-xml", dgx2}), HasSubstr("excludes"));
}

}  // namespace
}  // namespace dtrain::launcher::topology_test
