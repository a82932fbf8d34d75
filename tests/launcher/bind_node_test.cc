// Tests of --dry-run: its words about this node, the order of hosts by switches, and where a rank's
// memory comes from.
#include "launcher/bind_node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "launcher/hosts/host_plan.h"
#include "launcher/launch.h"
#include "launcher/ranks/spawn.h"

namespace dtrain::launcher::bind_node_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

LaunchOptions Options() {
  LaunchOptions options;
  options.program = "./gpt";
  options.arguments = {"a b.json"};
  options.run_dir = "runs/x";
  options.network_profile = "oci";
  return options;
}

NodeBinding TwoRanks() {
  NodeBinding binding;
  binding.plan.ranks.resize(2);
  for (int rank = 0; rank < 2; ++rank) {
    RankBinding& each = binding.plan.ranks[static_cast<size_t>(rank)];
    each.local_rank = rank;
    each.cpus = {2 * rank, 2 * rank + 1};
    each.cores = 2;
    each.memory_node = rank;
    each.gpu = 1 - rank;
    each.nic = absl::StrCat("mlx5_", rank);
  }
  binding.network = {{"NCCL_IB_TC", "41", "the switches want it", ""},
                     {"NCCL_IB_SL", "0", "likewise", "3", "the environment"},
                     {"NCCL_IB_HCA", "", "no NIC", ""}};
  return binding;
}

TEST(DescribeNode, ShowsEachRanksPlaceCommandAndVariables) {
  const std::string text = DescribeNode(Options(), {{"NCCL_IB_SL", "3"}}, TwoRanks(), 2);
  EXPECT_THAT(text, HasSubstr("node 0 of 1: this host, 2 ranks\n"));
  EXPECT_THAT(text, HasSubstr("command of each rank: ./gpt 'a b.json'\n"));
  EXPECT_THAT(text, HasSubstr("NCCL_IB_TC=41 (the switches want it)\n"));
  EXPECT_THAT(text, HasSubstr("NCCL_IB_SL=3 (kept: the environment sets it; the profile has 0)\n"));
  EXPECT_THAT(text,
              HasSubstr("local rank 1: CPUs 2-3, memory of NUMA node 1, GPU 0, NIC mlx5_1\n"));
  EXPECT_THAT(text, HasSubstr("    WORLD_SIZE=\"2\"\n"));
  EXPECT_THAT(text, HasSubstr("    CUDA_VISIBLE_DEVICES=\"1,0\"\n"));
  EXPECT_THAT(text, HasSubstr("    NCCL_IB_TC=\"41\"\n"));
  EXPECT_THAT(text, Not(HasSubstr("    NCCL_IB_SL=\"")));
  EXPECT_THAT(text, HasSubstr("    MASTER_PORT=\"(known when the job has begun)\"\n"));
}

TEST(DescribeNode, OnSeveralNodesTheRanksAreNotGuessed) {
  LaunchOptions options = Options();
  options.nodes = 2;
  options.node_rank = 1;
  const std::string text = DescribeNode(options, {}, TwoRanks(), 2);
  EXPECT_THAT(text, AllOf(HasSubstr("node 1 of 2"),
                          HasSubstr("    RANK=\"(known when the job has begun)\"\n"),
                          HasSubstr("    LOCAL_RANK=\"1\"\n")));
}

TEST(LaunchCommand, ADryRunOnThisNodeStartsNothing) {
  const std::string made = testing::TempDir() + "/made_by_the_dry_run";
  testing::internal::CaptureStdout();
  EXPECT_EQ(LaunchCommand({"--dry-run", "--nproc-per-node", "2", "--network-profile", "aws-efa",
                           "touch", made},
                          {{"PATH", "/bin:/usr/bin"}}),
            0);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_THAT(text, HasSubstr("this host, 2 ranks"));
  EXPECT_THAT(text, HasSubstr("FI_PROVIDER=\"efa\""));
  EXPECT_FALSE(FileExists(made));
}

TEST(LaunchCommand, SaysWhichFlagsHaveNoEffectUnlessItIsQuiet) {
  const auto said_with = [](const std::string& flag) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    EXPECT_EQ(LaunchCommand({"--dry-run", "--no-bind", flag, "--start-method", "fork", "true"},
                            {{"PATH", "/bin:/usr/bin"}}),
              0);
    testing::internal::GetCapturedStdout();
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said_with("--no-tensorboard"),
            "dtrain: --start-method has no effect: each rank is a program that is started anew\n");
  EXPECT_EQ(said_with("--quiet"), "");
}

TEST(LaunchCommand, ALocalRankThatNoNodeHasIsRefusedAlsoForAllHosts) {
  const std::string hosts = testing::TempDir() + "/few_slots";
  std::ofstream(hosts) << "a slots=1\nb slots=2\n";
  const auto end_of = [](const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"--dry-run", "--no-bind"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.emplace_back("true");
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int code = LaunchCommand(words, {{"PATH", "/bin:/usr/bin"}});
    testing::internal::GetCapturedStdout();
    return absl::StrCat(code, " ", testing::internal::GetCapturedStderr());
  };
  constexpr char kRefused[] = "64 dtrain launch: --tee names local rank 2; allowed with 2 ranks on";
  EXPECT_THAT(end_of({"--nproc-per-node", "2", "--tee", "2:3"}), HasSubstr(kRefused));
  EXPECT_THAT(end_of({"--hostfile", hosts, "--tee", "2:3"}), HasSubstr(kRefused));
  EXPECT_EQ(end_of({"--hostfile", hosts, "--tee", "1:3"}), "0 ") << "host b has it";
}

// Before it starts any host, or srun.
TEST(LaunchCommand, AReserveThatNobodyWouldTakeIsRefusedAlsoForAllHosts) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--hostfile", "/nowhere"}, {"--dry-run"}}) {
    std::vector<std::string> words = {"--reserve", "--nproc-per-node", "2"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.emplace_back("true");
    testing::internal::CaptureStderr();
    EXPECT_EQ(LaunchCommand(words, {{"PATH", "/bin:/usr/bin"}}), 64);
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr("--reserve needs --max-restarts or --nnodes MIN:MAX"));
  }
}

TEST(PlanHosts, HostsOfOneSwitchAreNumberedOneAfterTheOther) {
  const std::string folder = testing::TempDir();
  std::ofstream(folder + "/switch_hosts") << "a slots=1\nb slots=1\nc slots=1\n";
  std::ofstream(folder + "/topology.conf")
      << "SwitchName=s1 Nodes=a,c\nSwitchName=s2 Nodes=b\nSwitchName=top Switches=s[1-2]\n";
  LaunchOptions options = Options();
  options.hosts.hostfile = folder + "/switch_hosts";
  options.hosts.topology_conf = folder + "/topology.conf";
  const auto plans = PlanHosts(options, {});
  ASSERT_TRUE(plans.ok()) << plans.status();
  std::vector<std::string> hosts;
  for (const HostPlan& plan : *plans) {
    hosts.push_back(plan.host);
    EXPECT_EQ(plan.job.node_rank, static_cast<int>(hosts.size()) - 1);
  }
  EXPECT_THAT(hosts, ElementsAre("a", "c", "b"));
  EXPECT_THAT(DescribePlans(*plans), HasSubstr("  switches: top.s2\n"));
  std::ofstream(folder + "/topology.conf") << "SwitchName=s1 Switches=s9\n";
  EXPECT_THAT(std::string(PlanHosts(options, {}).status().message()),
              HasSubstr("topology.conf:1: unknown switch s9"));
}

// The kernel shows the policy of a process in its numa_maps.
TEST(Spawn, TakesMemoryFromTheNodeOfTheRanksCores) {
  if (!FileExists("/proc/self/numa_maps") ||
      syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0) != 0) {
    GTEST_SKIP() << "LOUD SKIP: this kernel or container has no memory policies";
  }
  for (const bool bound : {true, false}) {
    SpawnRequest request;
    request.program = "/bin/sh";
    request.name = "sh";
    request.arguments = {"-c", "cat /proc/self/numa_maps"};
    request.memory_node = bound ? 0 : -1;
    request.environment = {"PATH=/bin:/usr/bin"};
    request.out_path = absl::StrCat(testing::TempDir(), "/numa_maps_", bound);
    request.err_path = request.out_path + ".err";
    const auto pid = Spawn(request);
    ASSERT_TRUE(pid.ok()) << pid.status();
    int status = 0;
    ASSERT_EQ(waitpid(*pid, &status, 0), *pid);
    const auto text = ReadFile(request.out_path);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(text->find(" prefer:0 ") != std::string::npos, bound) << *text;
  }
}

}  // namespace
}  // namespace dtrain::launcher::bind_node_test
