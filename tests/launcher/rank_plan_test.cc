#include "launcher/rank_plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/program.h"

namespace dtrain::launcher::rank_plan_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

JobShape TwoNodes() {
  JobShape shape;
  shape.ranks_of_node = {2, 3};
  shape.node_rank = 1;
  shape.attempt = 4;
  shape.run_id = "run";
  shape.run_dir = "/runs/a";
  shape.store = "10.0.0.1:5000";
  shape.agent_socket = "/tmp/agent";
  shape.host_address = "10.0.0.2";
  shape.node_id = "run/1";
  shape.master_address = "10.0.0.1";
  shape.master_port = 29501;
  shape.token_fd = 3;
  return shape;
}

// Local rank i on core i with two hyperthreads, and on the GPU given.
RankPlan Bound(const std::vector<int>& gpus) {
  RankPlan plan;
  for (const int gpu : gpus) {
    RankBinding& rank = plan.ranks.emplace_back();
    rank.local_rank = static_cast<int>(plan.ranks.size()) - 1;
    rank.cpus = {2 * rank.local_rank, 2 * rank.local_rank + 1};
    rank.cores = 1;
    rank.gpu = gpu;
  }
  return plan;
}

TEST(PlanRanks, NumbersRanksNodeByNode) {
  const std::vector<RankSlot> slots = PlanRanks(TwoNodes(), Bound({-1, -1, -1}));
  ASSERT_EQ(slots.size(), 3U);
  EXPECT_EQ(slots[0].rank, 2);
  EXPECT_EQ(slots[2].rank, 4);
  EXPECT_EQ(slots[2].local_rank, 2);
  EXPECT_THAT(slots[1].cpus, ElementsAre(2, 3));
}

TEST(PlanRanks, GivesThreadsWithoutCpusUnderAQuota) {
  RankPlan limited = Bound({-1, -1, -1});
  limited.cores_by_quota = true;
  for (RankBinding& rank : limited.ranks) {
    rank.cpus.clear();
    rank.cores = 3;
  }
  const RankSlot slot = PlanRanks(TwoNodes(), limited)[1];
  EXPECT_THAT(slot.cpus, IsEmpty());
  EXPECT_EQ(RankEnvironment({}, TwoNodes(), slot).at("OMP_NUM_THREADS"), "3");
}

TEST(PlanRanks, BindsNobodyWithoutAPlanOrWhenRanksOutnumberCores) {
  RankPlan shared = Bound({-1, -1, -1});
  shared.cores_shared = true;
  for (const RankPlan& plan : {RankPlan(), shared}) {
    for (const RankSlot& slot : PlanRanks(TwoNodes(), plan)) {
      EXPECT_THAT(slot.cpus, IsEmpty());
      EXPECT_EQ(RankEnvironment({}, TwoNodes(), slot).at("OMP_NUM_THREADS"), "1");
    }
  }
}

TEST(RankEnvironment, TellsTheRanksWhetherTheirAttemptBeginsTheJobWhateverItsNumber) {
  JobShape shape = TwoNodes();  // Of attempt 4.
  const RankSlot slot = PlanRanks(shape, Bound({-1, -1, -1}))[0];
  for (const bool begins_job : {true, false}) {
    shape.begins_job = begins_job;
    const auto job = ResolveJobEnv(RankEnvironment({}, shape, slot));
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->attempt, 4);
    EXPECT_EQ(job->begins_job, begins_job);
  }
}

TEST(RankEnvironment, NamesTheRanksRdmaDeviceUnlessOneIsNamedAlready) {
  RankPlan plan = Bound({-1, -1, -1});
  plan.ranks[1].nic = "mlx5_3";
  for (const bool shared : {false, true}) {
    plan.cores_shared = shared;
    const std::vector<RankSlot> slots = PlanRanks(TwoNodes(), plan);
    EXPECT_EQ(RankEnvironment({}, TwoNodes(), slots[1]).at(env::kRdmaDevice), "mlx5_3");
    EXPECT_EQ(RankEnvironment({}, TwoNodes(), slots[0]).count(env::kRdmaDevice), 0U);
    EXPECT_EQ(
        RankEnvironment({{env::kRdmaDevice, "own0"}}, TwoNodes(), slots[1]).at(env::kRdmaDevice),
        "own0");
  }
}

TEST(RankEnvironment, SetsTheNetworksVariablesOnlyWhereTheUserHasNone) {
  JobShape shape = TwoNodes();
  shape.network = {{"NCCL_IB_TC", "41"}, {"NCCL_IB_SL", "0"}};
  const RankSlot slot = PlanRanks(shape, Bound({-1, -1, -1}))[0];
  const Environment environment = RankEnvironment({{"NCCL_IB_TC", "106"}}, shape, slot);
  EXPECT_EQ(environment.at("NCCL_IB_TC"), "106");
  EXPECT_EQ(environment.at("NCCL_IB_SL"), "0");
}

TEST(PlanRanks, TakesMemoryFromTheNodeOfTheCoresUnlessRanksShareThem) {
  RankPlan plan = Bound({-1, -1, -1});
  plan.ranks[1].memory_node = 1;
  EXPECT_EQ(PlanRanks(TwoNodes(), plan)[0].memory_node, -1);
  EXPECT_EQ(PlanRanks(TwoNodes(), plan)[1].memory_node, 1);
  plan.cores_shared = true;
  EXPECT_EQ(PlanRanks(TwoNodes(), plan)[1].memory_node, -1);
}

TEST(GpuOrder, IsToldOnlyWhereItIsNotTheDrivers) {
  EXPECT_THAT(GpuOrder(Bound({2, 0, 1})), ElementsAre(2, 0, 1));
  EXPECT_THAT(GpuOrder(Bound({0, 1, 2})), IsEmpty());
  EXPECT_THAT(GpuOrder(Bound({-1, -1})), IsEmpty());
  EXPECT_THAT(GpuOrder({}), IsEmpty());
  RankPlan shared = Bound({1, 1});
  shared.gpus_shared = true;
  EXPECT_THAT(GpuOrder(shared), IsEmpty());
}

TEST(RankEnvironment, ShowsTheGpusInThePlansOrderUnlessTheUserChose) {
  JobShape shape = TwoNodes();
  shape.gpu_order = {2, 0, 1};
  const RankSlot slot = PlanRanks(shape, Bound(shape.gpu_order))[1];
  const Environment environment = RankEnvironment({}, shape, slot);
  EXPECT_EQ(environment.at("CUDA_VISIBLE_DEVICES"), "2,0,1");
  EXPECT_EQ(environment.at("CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
  const Environment chosen = RankEnvironment({{"CUDA_VISIBLE_DEVICES", "1"}}, shape, slot);
  EXPECT_EQ(chosen.at("CUDA_VISIBLE_DEVICES"), "1");
  EXPECT_EQ(chosen.count("CUDA_DEVICE_ORDER"), 0U);
}

TEST(RankEnvironment, IsReadBackByTheRanksResolver) {
  const JobShape shape = TwoNodes();
  const Environment environment =
      RankEnvironment({{"PATH", "/bin"}, {"SLURM_PROCID", "7"}, {env::kTokenFile, "/secret"}},
                      shape, PlanRanks(shape, Bound({-1, -1, -1}))[2]);
  const absl::StatusOr<JobEnv> job = ResolveJobEnv(environment);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->source, LaunchSource::kDtrain);
  EXPECT_EQ(job->rank, 4);
  EXPECT_EQ(job->world_size, 5);
  EXPECT_EQ(job->local_rank, 2);
  EXPECT_EQ(job->local_world_size, 3);
  EXPECT_EQ(job->node_rank, 1);
  EXPECT_EQ(job->attempt, 4);
  EXPECT_EQ(job->store_host, "10.0.0.1");
  EXPECT_EQ(job->store_port, 5000);
  EXPECT_TRUE(job->store_is_served);
  EXPECT_FALSE(job->torch_agent_store);
  EXPECT_EQ(job->token_fd, 3);
  EXPECT_EQ(job->token_file, "");
  EXPECT_EQ(job->run_dir, "/runs/a");
  EXPECT_EQ(job->node_id, "run/1");
  EXPECT_EQ(environment.at("OMP_NUM_THREADS"), "1") << "a thread a core, not a hyperthread";
  EXPECT_EQ(environment.at("PATH"), "/bin");
}

// The variables that torchrun sets according to its manual.
TEST(RankEnvironment, HasTheVariablesOfTorchrun) {
  JobShape shape = TwoNodes();
  shape.restarts_max = 6;
  shape.role = "trainer";
  const Environment environment =
      RankEnvironment({}, shape, PlanRanks(shape, Bound({-1, -1, -1}))[2]);
  const Environment torchrun = {{"RANK", "4"},
                                {"WORLD_SIZE", "5"},
                                {"LOCAL_RANK", "2"},
                                {"LOCAL_WORLD_SIZE", "3"},
                                {"GROUP_RANK", "1"},
                                {"GROUP_WORLD_SIZE", "2"},
                                {"ROLE_RANK", "4"},
                                {"ROLE_WORLD_SIZE", "5"},
                                {"ROLE_NAME", "trainer"},
                                {"MASTER_ADDR", "10.0.0.1"},
                                {"MASTER_PORT", "29501"},
                                {"TORCHELASTIC_RUN_ID", "run"},
                                {"TORCHELASTIC_RESTART_COUNT", "4"},
                                {"TORCHELASTIC_MAX_RESTARTS", "6"},
                                {"TORCHELASTIC_USE_AGENT_STORE", "False"}};
  for (const auto& [name, value] : torchrun) {
    ASSERT_EQ(environment.count(name), 1U) << name;
    EXPECT_EQ(environment.at(name), value) << name;
  }
  EXPECT_EQ(environment.at(env::kHost), "10.0.0.2");
  EXPECT_EQ(environment.at(env::kAgentSocket), "/tmp/agent");
  shape.host_address = "";
  EXPECT_EQ(RankEnvironment({}, shape, {}).count(env::kHost), 0U) << "each rank finds its own";
}

TEST(EnvironmentEntries, AreNamesAndValues) {
  EXPECT_THAT(EnvironmentEntries({{"A", "1"}, {"B", "x=y"}}), ElementsAre("A=1", "B=x=y"));
}

TEST(RankEnvironment, KeepsTheUsersThreadCount) {
  const JobShape shape = TwoNodes();
  const RankSlot slot = PlanRanks(shape, Bound({-1, -1, -1}))[0];
  EXPECT_EQ(RankEnvironment({{"OMP_NUM_THREADS", "7"}}, shape, slot).at("OMP_NUM_THREADS"), "7");
}

TEST(FormatCpus, ShortensRanges) {
  EXPECT_EQ(FormatCpus({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
  EXPECT_EQ(FormatCpus({}), "");
}

TEST(RunDirInArguments, TakesTheLastOneInEitherSpelling) {
  EXPECT_EQ(RunDirInArguments({"c.json", "--run-dir", "a", "--run_dir=b"}), "b");
  EXPECT_EQ(RunDirInArguments({"c.json", "--run-directory", "a"}), "");
  EXPECT_EQ(RunDirInArguments({"--", "--run-dir", "a"}), "");
  EXPECT_EQ(RunDirInArguments({"--run-dir"}), "");
}

TEST(FindProgram, SaysWhereItLooked) {
  EXPECT_EQ(*FindProgram("sh", "/nowhere:/bin"), "/bin/sh");
  const auto missing = FindProgram("no-such-program", "/nowhere:/bin");
  EXPECT_TRUE(absl::IsNotFound(missing.status()));
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/nowhere:/bin"));
  EXPECT_THAT(std::string(FindProgram("/bin", "").status().message()), HasSubstr("directory"));
}

}  // namespace
}  // namespace dtrain::launcher::rank_plan_test
