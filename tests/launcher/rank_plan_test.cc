#include "launcher/rank_plan.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/nearest.h"
#include "launcher/program.h"

namespace dtrain::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SplitCpus, GivesDisjointBlocksThatCoverAll) {
  for (int cpus = 1; cpus <= 9; ++cpus) {
    for (int ranks = 1; ranks <= cpus; ++ranks) {
      std::vector<int> all(static_cast<size_t>(cpus));
      for (int i = 0; i < cpus; ++i) {
        all[static_cast<size_t>(i)] = 10 + i;
      }
      std::set<int> seen;
      for (const std::vector<int>& block : SplitCpus(all, ranks)) {
        EXPECT_GE(static_cast<int>(block.size()), cpus / ranks);
        EXPECT_LE(static_cast<int>(block.size()), cpus / ranks + 1);
        seen.insert(block.begin(), block.end());
      }
      EXPECT_EQ(seen.size(), all.size()) << cpus << " CPUs, " << ranks << " ranks";
    }
  }
}

TEST(SplitCpus, BindsNobodyWhenRanksOutnumberCpus) {
  EXPECT_THAT(SplitCpus({0, 1}, 3), ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
}

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

TEST(PlanRanks, NumbersRanksNodeByNode) {
  const std::vector<RankSlot> slots = PlanRanks(TwoNodes(), {0, 1, 2});
  ASSERT_EQ(slots.size(), 3U);
  EXPECT_EQ(slots[0].rank, 2);
  EXPECT_EQ(slots[2].rank, 4);
  EXPECT_EQ(slots[2].local_rank, 2);
  EXPECT_THAT(slots[1].cpus, ElementsAre(1));
}

TEST(RankEnvironment, IsReadBackByTheRanksResolver) {
  const JobShape shape = TwoNodes();
  const Environment environment =
      RankEnvironment({{"PATH", "/bin"}, {"SLURM_PROCID", "7"}, {env::kTokenFile, "/secret"}},
                      shape, PlanRanks(shape, {0, 1, 2, 3, 4, 5})[2]);
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
  EXPECT_EQ(environment.at("OMP_NUM_THREADS"), "2");
  EXPECT_EQ(environment.at("PATH"), "/bin");
}

TEST(RankEnvironment, KeepsTheUsersThreadCount) {
  const JobShape shape = TwoNodes();
  const RankSlot slot = PlanRanks(shape, {0, 1, 2, 3, 4, 5})[0];
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

TEST(Nearest, FindsTyposOnly) {
  EXPECT_EQ(Nearest("nproc-per-nod", {"nnodes", "nproc-per-node"}), "nproc-per-node");
  EXPECT_EQ(Nearest("entirely-else", {"nnodes", "nproc-per-node"}), "");
}

}  // namespace
}  // namespace dtrain::launcher
