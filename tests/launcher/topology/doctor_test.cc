// The doctor's findings on machines that lack something.
#include "launcher/topology/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/topology/commands.h"
#include "launcher/topology/format.h"

namespace dtrain::launcher::doctor_test {
namespace {

using testing::HasSubstr;

DoctorFacts GoodFacts() {
  DoctorFacts facts;
  facts.shm_bytes = facts.shm_free_bytes = 16ULL << 30;
  facts.memory_total_bytes = 32ULL << 30;
  facts.memory_available_bytes = 16ULL << 30;
  facts.open_files_max = 65536;
  facts.locked_memory_bytes = ~uint64_t{0};
  facts.torch_path = "/opt/torch";
  facts.torch_version = "2.11.0";
  facts.nccl = "NCCL 2.28.9 (/opt/libnccl.so.2)";
  facts.cuda_plugin_path = "/opt/lib/libdtrain_cuda.so";
  facts.built_cuda = 13000;
  return facts;
}

Topology GoodNode() {
  Topology topology;
  topology.packages = 1;
  topology.cores = {{0, 0, {0}}, {0, 0, {1}}};
  topology.numa_nodes = {{0, 32ULL << 30}};
  topology.memory_bytes = 32ULL << 30;
  Gpu gpu;
  gpu.name = "NVIDIA H100";
  gpu.numa = 0;
  topology.gpus = {gpu};
  topology.driver_version = "580.65.06";
  topology.driver_cuda = 13000;
  Nic nic;
  nic.name = "mlx5_0";
  nic.netdev = "eth2";
  nic.netdev_mtu = 9000;
  nic.numa = 0;
  nic.ports = {{1, "ACTIVE", "Ethernet", 400, {{3, "::ffff:10.0.0.1", "RoCE v2", "eth2"}}}};
  topology.nics = {nic};
  return topology;
}

Finding Named(const std::vector<Finding>& findings, const std::string& name) {
  for (const Finding& finding : findings) {
    if (finding.name == name) {
      return finding;
    }
  }
  ADD_FAILURE() << "no finding " << name << " in\n" << FormatFindings(findings);
  return {};
}

TEST(Doctor, AGoodNodeHasNothingButOk) {
  for (const Finding& finding : Diagnose(GoodNode(), GoodFacts())) {
    EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.name << ": " << finding.advice;
    EXPECT_EQ(finding.advice, "");
    EXPECT_NE(finding.text, "") << finding.name;
  }
}

TEST(Doctor, ANodeWithoutAGpuIsFineAndSaysWhyItHasNone) {
  Topology topology = GoodNode();
  topology.gpus.clear();
  topology.nics.clear();
  topology.notes = {"GPUs: no NVIDIA driver library: libnvidia-ml.so.1"};
  DoctorFacts facts = GoodFacts();
  facts.nccl = "";
  facts.nccl_error = "not installed";
  facts.cuda_plugin_path = "";
  const auto findings = Diagnose(topology, facts);
  for (const Finding& finding : findings) {
    EXPECT_LE(finding.verdict, Verdict::kNote) << finding.name;
  }
  EXPECT_THAT(Named(findings, "GPUs").text, HasSubstr("libnvidia-ml.so.1"));
}

TEST(Doctor, ACpuQuotaIsShownAndWarnedOfBelowOneCpu) {
  Topology topology = GoodNode();
  topology.cpu_quota = 1.5;
  Finding cores = Named(Diagnose(topology, GoodFacts()), "cores");
  EXPECT_EQ(cores.verdict, Verdict::kOk);
  EXPECT_THAT(cores.text, HasSubstr("a CPU quota of 1.50 CPUs"));
  topology.cpu_quota = 0.5;
  cores = Named(Diagnose(topology, GoodFacts()), "cores");
  EXPECT_EQ(cores.verdict, Verdict::kWarning);
  EXPECT_THAT(cores.advice, HasSubstr("at least 1 CPU"));
}

TEST(Doctor, WhatIsLeftOfACgroupsMemoryCountsAsTheMachinesDoes) {
  DoctorFacts facts = GoodFacts();
  facts.cgroup_memory_bytes = 4ULL << 30;
  facts.cgroup_available_bytes = 512ULL << 20;
  const Finding memory = Named(Diagnose(GoodNode(), facts), "memory");
  EXPECT_THAT(memory.text, HasSubstr("cgroup limit 4.0 GiB, 512.0 MiB left of it"));
  EXPECT_EQ(memory.verdict, Verdict::kWarning);
}

TEST(Doctor, WhatAGpuNeedsAndLacksIsAProblem) {
  DoctorFacts facts = GoodFacts();
  facts.nccl = "";
  facts.nccl_error = "libnccl.so.2: cannot open";
  facts.cuda_plugin_path = "";
  const auto findings = Diagnose(GoodNode(), facts);
  EXPECT_EQ(Named(findings, "NCCL").verdict, Verdict::kProblem);
  EXPECT_THAT(Named(findings, "NCCL").text, HasSubstr("cannot open"));
  EXPECT_EQ(Named(findings, "CUDA plugin").verdict, Verdict::kProblem);
}

TEST(Doctor, ADriverOlderThanTheCudaOfTheBuildIsAProblem) {
  Topology topology = GoodNode();
  topology.driver_cuda = 12040;
  const Finding old = Named(Diagnose(topology, GoodFacts()), "GPUs");
  EXPECT_EQ(old.verdict, Verdict::kProblem);
  EXPECT_THAT(old.text, HasSubstr("driver 580.65.06 (CUDA 12.4)"));
  EXPECT_THAT(old.advice, HasSubstr("the driver knows CUDA 12.4 and the runtime is CUDA 13.0; "
                                    "install a driver for CUDA 13"));
  topology.driver_cuda = 13010;
  EXPECT_EQ(Named(Diagnose(topology, GoodFacts()), "GPUs").verdict, Verdict::kOk);
}

TEST(Doctor, ABuildForTheCpuAndADriverThatDoesNotSayAreNotCompared) {
  Topology topology = GoodNode();
  topology.driver_cuda = 12040;
  DoctorFacts facts = GoodFacts();
  facts.built_cuda = 0;
  EXPECT_EQ(Named(Diagnose(topology, facts), "GPUs").verdict, Verdict::kOk);
  topology.driver_cuda = 0;
  EXPECT_EQ(Named(Diagnose(topology, GoodFacts()), "GPUs").verdict, Verdict::kOk);
}

TEST(Doctor, ADamagedGpuIsNamed) {
  const auto finding = [](const auto& change) {
    Topology topology = GoodNode();
    change(topology.gpus[0]);
    return Named(Diagnose(topology, GoodFacts()), "GPU 0");
  };
  const Finding failed = finding([](Gpu& gpu) { gpu.health.remap_failed = true; });
  EXPECT_EQ(failed.verdict, Verdict::kProblem);
  EXPECT_THAT(failed.advice, HasSubstr("replaced"));
  EXPECT_EQ(finding([](Gpu& gpu) { gpu.health.remap_pending = true; }).verdict, Verdict::kWarning);
  EXPECT_THAT(finding([](Gpu& gpu) { gpu.health.ecc_uncorrected = 3; }).text,
              HasSubstr("3 uncorrectable"));
  EXPECT_THAT(finding([](Gpu& gpu) {
                gpu.health.nvlinks_down = 2;
                gpu.nvlinks = {{1, 4}};
              }).text,
              HasSubstr("2 of its NVLinks are down"));
  const Finding fabric = finding([](Gpu& gpu) { gpu.health.fabric_state = "in progress"; });
  EXPECT_EQ(fabric.verdict, Verdict::kProblem);
  EXPECT_THAT(fabric.advice, HasSubstr("nvidia-fabricmanager"));
}

TEST(Doctor, EachWeaknessOfANicHasItsAdvice) {
  Topology topology = GoodNode();
  topology.nics[0].netdev_mtu = 1500;
  EXPECT_THAT(Named(Diagnose(topology, GoodFacts()), "NIC mlx5_0").advice, HasSubstr("1500"));
  topology.nics[0].ports[0].gids.clear();
  EXPECT_THAT(Named(Diagnose(topology, GoodFacts()), "NIC mlx5_0").advice,
              HasSubstr("no RoCE v2 GID"));
  topology.nics[0].ports[0].state = "DOWN";
  EXPECT_THAT(Named(Diagnose(topology, GoodFacts()), "NIC mlx5_0").advice,
              HasSubstr("no port is active"));
  topology = GoodNode();
  topology.nics[0].numa = 1;
  EXPECT_THAT(Named(Diagnose(topology, GoodFacts()), "NIC mlx5_0").advice, HasSubstr("SYS"));
}

TEST(Doctor, SmallLimitsAreFound) {
  DoctorFacts facts = GoodFacts();
  facts.shm_free_bytes = 64 << 20;
  facts.open_files_max = 1024;
  facts.locked_memory_bytes = 64 << 10;
  facts.memory_available_bytes = 1 << 20;
  facts.torch_path = "";
  facts.torch_error = "LibTorch not found in /opt: install it";
  const auto findings = Diagnose(GoodNode(), facts);
  EXPECT_EQ(Named(findings, "/dev/shm").verdict, Verdict::kWarning);
  EXPECT_EQ(Named(findings, "open files").verdict, Verdict::kWarning);
  EXPECT_EQ(Named(findings, "locked memory").verdict, Verdict::kProblem) << "RDMA is there";
  EXPECT_EQ(Named(findings, "memory").verdict, Verdict::kWarning);
  EXPECT_EQ(Named(findings, "LibTorch").verdict, Verdict::kProblem);
  EXPECT_EQ(Named(findings, "LibTorch").text, facts.torch_error);
  const std::string text = FormatFindings(findings);
  EXPECT_THAT(text, HasSubstr("PROBLEM"));
  EXPECT_THAT(
      text,
      HasSubstr("-> raise it for large jobs, where a rank has a connection to each other rank: "));
}

TEST(Doctor, EachLimitIsEnoughFromItsNumberOn) {
  const auto verdict = [](const char* name, const auto& change) {
    Topology topology = GoodNode();
    DoctorFacts facts = GoodFacts();
    change(topology, facts);
    return Named(Diagnose(topology, facts), name).verdict;
  };
  constexpr uint64_t kGiB = 1ULL << 30;
  for (const bool enough : {true, false}) {
    const uint64_t less = enough ? 0 : 1;
    const Verdict warning = enough ? Verdict::kOk : Verdict::kWarning;
    EXPECT_EQ(verdict("memory",
                      [&](Topology&, DoctorFacts& f) { f.memory_available_bytes = kGiB - less; }),
              warning);
    EXPECT_EQ(verdict("memory",
                      [&](Topology&, DoctorFacts& f) {
                        f.cgroup_memory_bytes = 4 * kGiB;
                        f.cgroup_available_bytes = kGiB - less;
                      }),
              warning);
    EXPECT_EQ(
        verdict("/dev/shm", [&](Topology&, DoctorFacts& f) { f.shm_free_bytes = kGiB - less; }),
        warning);
    EXPECT_EQ(
        verdict("open files", [&](Topology&, DoctorFacts& f) { f.open_files_max = 4096 - less; }),
        warning);
    EXPECT_EQ(verdict("locked memory",
                      [&](Topology&, DoctorFacts& f) { f.locked_memory_bytes = 16 * kGiB - less; }),
              enough ? Verdict::kOk : Verdict::kProblem);
    EXPECT_EQ(verdict("NIC mlx5_0",
                      [&](Topology& t, DoctorFacts&) {
                        t.nics[0].netdev_mtu = 4200 - static_cast<int>(less);
                      }),
              warning);
    EXPECT_EQ(verdict("cores", [&](Topology& t, DoctorFacts&) { t.cpu_quota = enough ? 1 : 0.99; }),
              warning);
  }
}

TEST(Doctor, WhatIsNotThereIsSaidAndCountsOnlyWhereItIsNeeded) {
  Topology topology = GoodNode();
  DoctorFacts facts = GoodFacts();
  facts.shm_bytes = 0;
  facts.verbs = "libibverbs.so.1: cannot open";
  facts.torch_version = "";
  std::vector<Finding> findings = Diagnose(topology, facts);
  EXPECT_EQ(Named(findings, "/dev/shm").text, "not there");
  EXPECT_EQ(Named(findings, "/dev/shm").verdict, Verdict::kWarning);
  EXPECT_EQ(Named(findings, "verbs").verdict, Verdict::kWarning);
  EXPECT_EQ(Named(findings, "LibTorch").text, "unknown version in /opt/torch");
  topology.nics.clear();
  facts.locked_memory_bytes = 64 << 10;
  findings = Diagnose(topology, facts);
  EXPECT_EQ(Named(findings, "RDMA NICs").verdict, Verdict::kNote);
  EXPECT_EQ(Named(findings, "locked memory").verdict, Verdict::kOk) << "nothing locks any";
  for (const Finding& finding : findings) {
    EXPECT_NE(finding.name, "verbs") << "without a NIC nothing needs it";
  }
}

TEST(Doctor, GpusOfTwoKindsAndNotesOfTheReadingAreWarnedOf) {
  Topology topology = GoodNode();
  topology.gpus.push_back(topology.gpus.front());
  for (const Finding& finding : Diagnose(topology, GoodFacts())) {
    EXPECT_NE(finding.name, "GPU kinds");
  }
  topology.gpus.back().name = "NVIDIA A100";
  topology.notes = {"hwloc: no PCI devices"};
  const std::vector<Finding> findings = Diagnose(topology, GoodFacts());
  EXPECT_EQ(Named(findings, "GPU kinds").verdict, Verdict::kWarning);
  EXPECT_EQ(Named(findings, "topology").text, "hwloc: no PCI devices");
  EXPECT_EQ(Named(findings, "topology").verdict, Verdict::kWarning);
}

TEST(DoctorMain, ReadsThisMachineAsTextAndJson) {
  testing::internal::CaptureStdout();
  const int text_code = DoctorMain({}, {});
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("/dev/shm"));
  testing::internal::CaptureStdout();
  EXPECT_EQ(DoctorMain({"--json"}, {}), text_code);
  const auto json = ParseJson(testing::internal::GetCapturedStdout(), "doctor");
  ASSERT_TRUE(json.ok()) << json.status();
  bool problem = false;
  for (const auto& finding : (*json)["findings"]) {
    problem = problem || finding["verdict"] == "problem";
  }
  EXPECT_EQ(text_code, problem ? 64 : 0);
}

}  // namespace
}  // namespace dtrain::launcher::doctor_test
