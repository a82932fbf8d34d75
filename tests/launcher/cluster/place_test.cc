// Places of nodes by the variables of Slurm and of Kubernetes' controllers.
#include "launcher/cluster/place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace dtrain::launcher::place_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Environment kBatch = {
    {"SLURM_JOB_ID", "31234"}, {"SLURM_JOB_NUM_NODES", "2"}, {"SLURM_JOB_NODELIST", "gpu-[07-08]"},
    {"SLURM_NODEID", "0"},     {"SLURM_PROCID", "0"},        {"SLURM_NTASKS", "16"}};
const Environment kStep = {{"SLURM_JOB_ID", "31234"},
                           {"SLURM_JOB_NUM_NODES", "4"},
                           {"SLURM_STEP_ID", "3"},
                           {"SLURM_STEP_NUM_NODES", "2"},
                           {"SLURM_STEP_NUM_TASKS", "2"},
                           {"SLURM_STEP_NODELIST", "gpu-[08,11]"},
                           {"SLURM_JOB_NODELIST", "gpu-[07-11]"},
                           {"SLURM_NODEID", "1"}};
const Environment kLeaderWorkerSet = {{"LWS_LEADER_ADDRESS", "train-0.train.default"},
                                      {"LWS_GROUP_SIZE", "4"},
                                      {"LWS_WORKER_INDEX", "3"}};
const Environment kIndexedJob = {{"JOB_COMPLETION_INDEX", "3"}, {"HOSTNAME", "train-3"}};
const Environment kJobSet = {
    {"JOB_COMPLETION_INDEX", "12"}, {"HOSTNAME", "run-node-0-12"}, {"JOBSET_NAME", "run"}};
const Environment kPyTorchJob = {{"MASTER_ADDR", "train-master-0"},
                                 {"MASTER_PORT", "23456"},
                                 {"RANK", "1"},
                                 {"WORLD_SIZE", "3"}};

Environment With(Environment environment, const Environment& changes) {
  for (const auto& [name, value] : changes) {
    environment[name] = value;
  }
  return environment;
}

Environment Without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

std::optional<NodePlace> Find(const Environment& environment) {
  const auto place = FindNodePlace(environment);
  EXPECT_TRUE(place.ok()) << place.status();
  return place.value_or(std::nullopt);
}

std::string ErrorOf(const Environment& environment) {
  const auto place = FindNodePlace(environment);
  return place.ok() ? "no error" : std::string(place.status().message());
}

TEST(FindNodePlace, ReadsEachSource) {
  struct Row {
    Environment environment;
    std::string source;
    int nodes;
    int node_rank;
    std::string endpoint;
  };
  const std::vector<Row> rows = {
      {kBatch, "Slurm job 31234", 2, -1, "gpu-07:21234"},
      // The shell of salloc, and the variables of a batch script, are steps without srun.
      {With(kBatch, {{"SLURM_STEP_ID", "4294967290"}}), "Slurm job 31234", 2, -1, "gpu-07:21234"},
      {With(kBatch, {{"SLURM_JOB_ID", "7"}}), "Slurm job 7", 2, -1, "gpu-07:20007"},
      {With(kBatch, {{"MASTER_ADDR", "head"}}), "Slurm job 31234", 2, -1, "head:21234"},
      {With(kBatch, {{"MASTER_PORT", "9"}}), "Slurm job 31234", 2, -1, "gpu-07:9"},
      {With(kBatch, {{"SLURM_JOB_NUM_NODES", "1"}}), "Slurm job 31234", 1, -1, ""},
      {kStep, "Slurm step 31234.3", 2, 1, "gpu-08:21234"},
      {With(kStep, {{"SLURM_NODEID", "0"}}), "Slurm step 31234.3", 2, 0, "gpu-08:21234"},
      {With(kStep, {{"MASTER_ADDR", "::1"}, {"MASTER_PORT", "5"}}), "Slurm step 31234.3", 2, 1,
       "[::1]:5"},
      {kLeaderWorkerSet, "LeaderWorkerSet", 4, 3, "train-0.train.default:29500"},
      {With(kLeaderWorkerSet, {{"MASTER_PORT", "1234"}}), "LeaderWorkerSet", 4, 3,
       "train-0.train.default:1234"},
      {kIndexedJob, "Indexed Job", -1, 3, "train-0.train:29500"},
      {With(kIndexedJob, {{"MASTER_ADDR", "train-0.svc"}}), "Indexed Job", -1, 3,
       "train-0.svc:29500"},
      {With(kIndexedJob, {{"HOSTNAME", "node-of-the-cluster"}}), "Indexed Job", -1, 3, ""},
      {Without(kIndexedJob, "HOSTNAME"), "Indexed Job", -1, 3, ""},
      {kJobSet, "JobSet run", -1, 12, "run-node-0-0.run:29500"},
      {kPyTorchJob, "PyTorchJob", 3, 1, "train-master-0:23456"},
      {With(kLeaderWorkerSet, {{"JOB_COMPLETION_INDEX", "3"}}), "LeaderWorkerSet and Indexed Job",
       4, 3, "train-0.train.default:29500"},
  };
  for (const Row& row : rows) {
    const std::optional<NodePlace> place = Find(row.environment);
    ASSERT_TRUE(place.has_value()) << row.source;
    EXPECT_EQ(place->source, row.source);
    EXPECT_EQ(place->nodes.value, row.nodes) << row.source;
    EXPECT_EQ(place->node_rank.value, row.node_rank) << row.source;
    EXPECT_EQ(place->endpoint, row.endpoint) << row.source;
  }
}

TEST(FindNodePlace, FindsNothingWhereNobodyGivesAPlace) {
  EXPECT_FALSE(Find({}).has_value());
  EXPECT_FALSE(Find({{"SLURM_CONF", "/etc/slurm.conf"}, {"HOSTNAME", "train-3"}}).has_value());
  EXPECT_FALSE(Find({{"MASTER_ADDR", "head"}, {"WORLD_SIZE", "2"}}).has_value());
  EXPECT_FALSE(Find(With(kStep, {{"RANK", "1"}, {"LOCAL_RANK", "0"}})).has_value()) << "a rank";
  EXPECT_FALSE(Find(With(kStep, {{"OMPI_COMM_WORLD_RANK", "1"}})).has_value()) << "mpirun's step";
  EXPECT_FALSE(Find(With(kStep, {{"PMI_RANK", "1"}, {"MPI_LOCALRANKID", "0"}})).has_value());
  EXPECT_FALSE(Find(With(kPyTorchJob, {{"PET_NNODES", "3"}})).has_value()) << "WORLD_SIZE is ranks";
}

TEST(FindNodePlace, TellsAnAllocationFromAStepOfIt) {
  EXPECT_TRUE(Find(kBatch)->starts_step);
  EXPECT_TRUE(Find(kBatch)->is_slurm);
  EXPECT_FALSE(Find(kStep)->starts_step);
  EXPECT_TRUE(Find(kStep)->is_slurm);
  EXPECT_FALSE(Find(With(kBatch, {{"SLURM_JOB_NUM_NODES", "1"}}))->starts_step);
  EXPECT_FALSE(Find(kLeaderWorkerSet)->is_slurm);
}

TEST(FindNodePlace, ReadsWhatSlurmSaysOfGpusAndRequeues) {
  EXPECT_EQ(Find(kStep)->gpus, -1);
  EXPECT_EQ(Find(With(kStep, {{"SLURM_GPUS_ON_NODE", "8"}}))->gpus, 8);
  EXPECT_EQ(Find(kStep)->restarts, 0);
  EXPECT_EQ(Find(With(kStep, {{"SLURM_RESTART_COUNT", "2"}}))->restarts, 2);
}

TEST(FindNodePlace, RefusesAStepWithMoreTasksThanNodesAndShowsTheLine) {
  EXPECT_THAT(ErrorOf(With(kStep, {{"SLURM_STEP_NUM_TASKS", "4"}})),
              AllOf(HasSubstr("4 launchers on 2 nodes"),
                    HasSubstr("srun --ntasks=2 --ntasks-per-node=1 dtrain launch")));
  EXPECT_THAT(ErrorOf(With(kStep, {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_NODEID", "0"}})),
              HasSubstr("2 launchers on 1 node "));
}

TEST(FindNodePlace, NamesAVariableWithABadValue) {
  EXPECT_THAT(ErrorOf(With(kStep, {{"SLURM_NODEID", "2"}})),
              HasSubstr("SLURM_NODEID is \"2\"; allowed: an integer in [0, 1]"));
  EXPECT_THAT(ErrorOf(With(kBatch, {{"SLURM_JOB_NUM_NODES", "two"}})),
              HasSubstr("SLURM_JOB_NUM_NODES is \"two\""));
  EXPECT_THAT(ErrorOf(With(kBatch, {{"SLURM_JOB_NODELIST", "gpu-[8-7]"}})),
              HasSubstr("host list \"gpu-[8-7]\": bad range"));
  EXPECT_THAT(ErrorOf(With(kBatch, {{"MASTER_PORT", "0"}})), HasSubstr("MASTER_PORT is \"0\""));
  EXPECT_THAT(ErrorOf(With(kLeaderWorkerSet, {{"LWS_WORKER_INDEX", "4"}})),
              HasSubstr("LWS_WORKER_INDEX is \"4\"; allowed: an integer in [0, 3]"));
  EXPECT_THAT(ErrorOf(With(kIndexedJob, {{"JOB_COMPLETION_INDEX", "-1"}})),
              HasSubstr("JOB_COMPLETION_INDEX"));
}

// The flags after FillFromPlace as "NODES RANK ENDPOINT", or the error.
std::string Filled(const Environment& environment, NodeFlags flags) {
  const absl::Status status = FillFromPlace(*Find(environment), flags);
  return status.ok() ? flags.nodes.value + " " + flags.node_rank.value + " " + flags.endpoint.value
                     : std::string(status.message());
}

NodeFlags::Flag Typed(const std::string& value) { return {value, true}; }
NodeFlags::Flag Variable(const std::string& value) { return {value, false}; }

TEST(FillFromPlace, SetsWhatIsLeftOut) {
  EXPECT_EQ(Filled(kStep, {}), "2 1 gpu-08:21234");
  EXPECT_EQ(Filled(kBatch, {}), "2  gpu-07:21234");
  EXPECT_EQ(Filled(kLeaderWorkerSet, {}), "4 3 train-0.train.default:29500");
  EXPECT_EQ(Filled(kIndexedJob, {.nodes = Typed("4")}), "4 3 train-0.train:29500");
  EXPECT_EQ(Filled(kPyTorchJob, {}), "3 1 train-master-0:23456");
}

TEST(FillFromPlace, OneNodeNeedsNothingElse) {
  EXPECT_EQ(Filled(kIndexedJob, {}), "  ") << "a job whose pods train alone";
  EXPECT_EQ(Filled(kLeaderWorkerSet, {.nodes = Typed("1")}), "1  ");
}

TEST(FillFromPlace, FlagsThatAgreeAndTypedOnesStay) {
  EXPECT_EQ(Filled(kStep, {Variable("2"), Variable("1"), Variable("gpu-08.cluster:1")}),
            "2 1 gpu-08.cluster:1");
  EXPECT_EQ(Filled(kStep, {.nodes = Typed("1:4")}), "1:4 1 gpu-08:21234");
  EXPECT_EQ(Filled(kLeaderWorkerSet, {.nodes = Variable("2:3")}),
            "2:3 3 train-0.train.default:29500")
      << "the fourth node is a spare";
  EXPECT_EQ(Filled(kLeaderWorkerSet, {Typed("8"), Typed("5"), Typed("other:1")}), "8 5 other:1");
  EXPECT_EQ(Filled(kLeaderWorkerSet, {.endpoint = Variable("10.0.0.1:1")}), "4 3 10.0.0.1:1");
}

TEST(FillFromPlace, NamesTwoSourcesThatContradictEachOther) {
  EXPECT_THAT(
      Filled(kBatch, {.nodes = Typed("3")}),
      AllOf(HasSubstr("--nnodes 3 contradicts SLURM_JOB_NUM_NODES=2"), HasSubstr("--standalone")));
  EXPECT_THAT(Filled(kBatch, {.nodes = Typed("3:4")}),
              HasSubstr("--nnodes 3:4 contradicts SLURM_JOB_NUM_NODES=2"));
  EXPECT_THAT(Filled(kStep, {.nodes = Typed("1")}),
              HasSubstr("--nnodes 1 contradicts SLURM_STEP_NUM_NODES=2"));
  EXPECT_THAT(Filled(kBatch, {.node_rank = Typed("1")}),
              HasSubstr("--node-rank 1 has no meaning here"));
  EXPECT_THAT(Filled(kLeaderWorkerSet, {.nodes = Variable("3")}),
              HasSubstr("PET_NNODES=3 contradicts LWS_GROUP_SIZE=4"));
  EXPECT_THAT(Filled(kLeaderWorkerSet, {.node_rank = Variable("2")}),
              HasSubstr("PET_NODE_RANK=2 contradicts LWS_WORKER_INDEX=3"));
  EXPECT_THAT(Filled(kLeaderWorkerSet, {.endpoint = Variable("other:1")}),
              HasSubstr("other:1 (PET_*) contradicts train-0.train.default:29500"));
}

TEST(FillFromPlace, AFlagSettlesAContradictionOfVariables) {
  const Environment two = With(kLeaderWorkerSet, {{"JOB_COMPLETION_INDEX", "2"}});
  EXPECT_THAT(Filled(two, {}), AllOf(HasSubstr("node rank: LWS_WORKER_INDEX=3 contradicts "
                                               "JOB_COMPLETION_INDEX=2"),
                                     HasSubstr("--node-rank")));
  EXPECT_EQ(Filled(two, {.node_rank = Typed("2")}), "4 2 train-0.train.default:29500");
  const Environment hosts =
      With(kLeaderWorkerSet, {{"JOB_COMPLETION_INDEX", "3"}, {"HOSTNAME", "other-3"}});
  EXPECT_THAT(Filled(hosts, {}), HasSubstr("other-0.other:29500 (Indexed Job)"));
  EXPECT_EQ(Filled(hosts, {.endpoint = Typed("h:1")}), "4 3 h:1");
}

// Every job of a JobSet counts its pods from 0.
TEST(FillFromPlace, RefusesAFurtherJobOfAJobSetUnlessItsNodeRankIsGiven) {
  const Environment second = With(kJobSet, {{"HOSTNAME", "run-node-1-12"}});
  EXPECT_THAT(
      Filled(second, {.nodes = Typed("32")}),
      AllOf(HasSubstr("run-node-1-12"), HasSubstr("replicas: 1"), HasSubstr("--node-rank")));
  EXPECT_EQ(
      Filled(second, {.nodes = Typed("32"), .node_rank = Typed("28"), .endpoint = Typed("h:1")}),
      "32 28 h:1");
}

TEST(DescribePlace, SaysWhereTheValuesComeFrom) {
  EXPECT_EQ(DescribePlace(*Find(kStep), 2, 1, "gpu-08:21234"),
            "node 1 of 2 by Slurm step 31234.3; nodes meet at gpu-08:21234");
  EXPECT_EQ(DescribePlace(*Find(kBatch), 2, 0, "gpu-07:21234"),
            "Slurm job 31234: starts itself on its 2 nodes by srun; they meet at gpu-07:21234");
  // With --nnodes MIN:MAX agents are started on all of them.
  EXPECT_THAT(DescribePlace(*Find(kBatch), 1, 0, "gpu-07:21234"), HasSubstr("its 2 nodes"));
}

}  // namespace
}  // namespace dtrain::launcher::place_test
