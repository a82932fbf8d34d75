// Resolution of ranks from the environments that launchers set, as seen on real systems.
#include "base/job_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace dtrain::job_env_test {
namespace {

using testing::HasSubstr;

JobEnv Resolve(const Environment& environment) {
  const auto job = ResolveJobEnv(environment);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.value_or(JobEnv{});
}

std::string ErrorOf(const Environment& environment) {
  const auto job = ResolveJobEnv(environment);
  return job.ok() ? "resolved" : std::string(job.status().message());
}

// Rank 3 of 4, the second of node 1.
const Environment kTorchrun = {{"RANK", "3"},
                               {"WORLD_SIZE", "4"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "2"},
                               {"GROUP_RANK", "1"},
                               {"MASTER_ADDR", "node0"},
                               {"MASTER_PORT", "29500"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                               {"TORCHELASTIC_RUN_ID", "job-7"},
                               {"TORCHELASTIC_RESTART_COUNT", "2"}};
const Environment kSlurmStep = {{"SLURM_JOB_ID", "31234"},
                                {"SLURM_STEP_ID", "0"},
                                {"SLURM_PROCID", "4"},
                                {"SLURM_STEP_NUM_TASKS", "5"},
                                {"SLURM_NTASKS", "9"},
                                {"SLURM_LOCALID", "0"},
                                {"SLURM_NODEID", "2"},
                                {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                                {"SLURM_STEP_NODELIST", "gpu[07-09]"}};

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

TEST(ResolveJobEnv, IsAloneWhenNobodyLaunchedIt) {
  const JobEnv job = Resolve({{"HOME", "/root"}});
  EXPECT_EQ(job.source, LaunchSource::kAlone);
  EXPECT_EQ(job.world_size, 1);
  EXPECT_EQ(job.rank, 0);
  EXPECT_TRUE(job.store_host.empty());
}

TEST(ResolveJobEnv, ReadsTorchrun) {
  const JobEnv job = Resolve(kTorchrun);
  EXPECT_EQ(job.source, LaunchSource::kTorchrun);
  EXPECT_EQ(job.rank, 3);
  EXPECT_EQ(job.world_size, 4);
  EXPECT_EQ(job.local_rank, 1);
  EXPECT_EQ(job.local_world_size, 2);
  EXPECT_EQ(job.node_rank, 1);
  EXPECT_EQ(job.store_host, "node0");
  EXPECT_EQ(job.store_port, 29500);
  EXPECT_TRUE(job.torch_agent_store);  // torchrun's own store listens there, so ours must not.
  EXPECT_FALSE(job.store_is_served);
  EXPECT_EQ(job.run_id, "job-7");
  EXPECT_EQ(job.attempt, 2);
}

TEST(ResolveJobEnv, AnIpv6AddressLosesTheBracketsThatItHasBeforeAPort) {
  EXPECT_EQ(Resolve(With(kTorchrun, {{env::kStore, "[::1]:4321"}})).store_host, "::1");
  EXPECT_EQ(Resolve(With(kTorchrun, {{env::kStore, "[::1]:4321"}})).store_port, 4321);
  EXPECT_EQ(Resolve(With(kTorchrun, {{"MASTER_ADDR", "[fd00::7]"}})).store_host, "fd00::7");
  EXPECT_EQ(Resolve(With(kTorchrun, {{"MASTER_ADDR", "fd00::7"}})).store_host, "fd00::7");
}

TEST(ResolveJobEnv, TorchrunsNameForARunWithoutOneIsNone) {
  EXPECT_EQ(Resolve(With(kTorchrun, {{"TORCHELASTIC_RUN_ID", "none"}})).run_id, "");
  EXPECT_EQ(
      Resolve(With(kTorchrun, {{"TORCHELASTIC_RUN_ID", "none"}, {"SLURM_JOB_ID", "7"}})).run_id,
      "7");
}

TEST(ResolveJobEnv, AJobThatSlurmStartedAgainIsALaterAttempt) {
  EXPECT_EQ(Resolve(kSlurmStep).attempt, 0) << "Slurm sets it after a requeue only";
  const Environment again = With(kSlurmStep, {{"SLURM_RESTART_COUNT", "2"}});
  EXPECT_EQ(Resolve(again).attempt, 2);
  EXPECT_EQ(Resolve(With(again, {{env::kAttempt, "5"}})).attempt, 5);
  EXPECT_EQ(Resolve(With(kTorchrun, {{"SLURM_RESTART_COUNT", "7"}})).attempt, 2);
}

// In an elastic job a coordinator may have ended behind an attempt 0 that has begun nowhere.
TEST(ResolveJobEnv, TheLauncherSaysWhichAttemptBeginsTheJobAndElseThatOfNumberZeroDoes) {
  EXPECT_TRUE(Resolve(With(kTorchrun, {{env::kAttempt, "0"}})).begins_job);
  EXPECT_FALSE(Resolve(With(kTorchrun, {{env::kAttempt, "1"}})).begins_job);
  EXPECT_FALSE(Resolve(With(kSlurmStep, {{"SLURM_RESTART_COUNT", "2"}})).begins_job);
  const auto launched = [](const char* attempt, const char* begins_job) {
    return With(kTorchrun, {{env::kAttempt, attempt}, {env::kBeginsJob, begins_job}});
  };
  EXPECT_TRUE(Resolve(launched("1", "1")).begins_job);
  EXPECT_FALSE(Resolve(launched("0", "0")).begins_job);
  EXPECT_THAT(ErrorOf(launched("0", "yes")), HasSubstr("DTRAIN_BEGINS_JOB"));
}

TEST(ResolveJobEnv, NamesTheVariableThatGivesTheNumberOfRanks) {
  EXPECT_EQ(Resolve(kTorchrun).world_size_name, "WORLD_SIZE");
  EXPECT_EQ(Resolve(kSlurmStep).world_size_name, "SLURM_STEP_NUM_TASKS");
  EXPECT_EQ(Resolve({}).world_size_name, "");
}

TEST(ResolveJobEnv, ReadsDtrainLaunch) {
  const JobEnv job = Resolve(With(kTorchrun, {{env::kStore, "10.0.0.1:4321"},
                                              {env::kRunId, "run-1"},
                                              {env::kRunDir, "/runs/1"},
                                              {env::kAttempt, "5"},
                                              {env::kTokenFd, "9"},
                                              {env::kAgentSocket, "/tmp/agent"},
                                              {env::kNodeId, "node-b"},
                                              {env::kHost, "10.0.0.2"}}));
  EXPECT_EQ(job.source, LaunchSource::kDtrain);
  EXPECT_EQ(job.store_host, "10.0.0.1");
  EXPECT_EQ(job.store_port, 4321);
  EXPECT_TRUE(job.store_is_served);
  EXPECT_EQ(job.run_id, "run-1");
  EXPECT_EQ(job.run_dir, "/runs/1");
  EXPECT_EQ(job.attempt, 5);  // dtrain's variable overrides torchrun's.
  EXPECT_EQ(job.token_fd, 9);
  EXPECT_EQ(job.agent_socket, "/tmp/agent");
  EXPECT_EQ(job.node_id, "node-b");
  EXPECT_EQ(job.host_address, "10.0.0.2");
}

TEST(ResolveJobEnv, ReadsASlurmStep) {
  const JobEnv job = Resolve(kSlurmStep);
  EXPECT_EQ(job.source, LaunchSource::kSlurm);
  EXPECT_EQ(job.rank, 4);
  EXPECT_EQ(job.world_size, 5);  // The step's size, not the allocation's.
  EXPECT_EQ(job.local_rank, 0);
  EXPECT_EQ(job.local_world_size, 1);  // The third number of "2(x2),1".
  EXPECT_EQ(job.node_rank, 2);
  EXPECT_EQ(job.store_host, "gpu07");
  EXPECT_EQ(job.store_port, 21234);  // 20000 + job id % 10000.
  EXPECT_EQ(job.run_id, "31234");
}

TEST(ResolveJobEnv, PrefersMpirunOverTheSlurmVariablesThatItLeaks) {
  // Under mpirun inside an allocation each rank carries its daemon's SLURM_PROCID.
  const JobEnv job = Resolve(With(kSlurmStep, {{"OMPI_COMM_WORLD_RANK", "1"},
                                               {"OMPI_COMM_WORLD_SIZE", "2"},
                                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                               {"OMPI_COMM_WORLD_NODE_RANK", "1"}}));
  EXPECT_EQ(job.source, LaunchSource::kOpenMpi);
  EXPECT_EQ(job.rank, 1);
  EXPECT_EQ(job.world_size, 2);
  EXPECT_EQ(job.node_rank, -1);  // OMPI's NODE_RANK is a rank within the node.
}

TEST(ResolveJobEnv, ReadsMpichHydra) {
  const JobEnv job = Resolve(With(
      kSlurmStep,
      {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}}));
  EXPECT_EQ(job.source, LaunchSource::kMpich);
  EXPECT_EQ(job.rank, 2);
  EXPECT_EQ(job.local_world_size, 2);
}

TEST(ResolveJobEnv, LeavesTheLocalSizeOpenWithPmiAlone) {
  const JobEnv job = Resolve({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  EXPECT_EQ(job.source, LaunchSource::kPmi);
  EXPECT_EQ(job.rank, 1);
  EXPECT_EQ(job.local_world_size, 0);
  EXPECT_EQ(job.store_host, "127.0.0.1");
}

TEST(ResolveJobEnv, RefusesABatchScriptThatWouldWaitForEver) {
  EXPECT_THAT(ErrorOf({{"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}),
              HasSubstr("this is a Slurm batch script for 4 tasks, not one of its steps; start the "
                        "program with srun"));
  EXPECT_EQ(Resolve({{"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "1"}}).source, LaunchSource::kAlone);
}

TEST(ResolveJobEnv, RefusesNodeLevelValues) {
  EXPECT_THAT(ErrorOf({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), HasSubstr("without LOCAL_RANK"));
}

TEST(ResolveJobEnv, NamesTheVariableTheValueAndTheRange) {
  EXPECT_THAT(ErrorOf(With(kTorchrun, {{"RANK", "4"}})),
              HasSubstr("RANK is \"4\"; allowed: an integer in [0, 3]"));
  EXPECT_THAT(ErrorOf(With(kTorchrun, {{"WORLD_SIZE", "two"}})), HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(ErrorOf(With(kTorchrun, {{"LOCAL_RANK", "2"}})),
              HasSubstr("LOCAL_RANK is \"2\"; allowed: an integer in [0, 1]"));
  EXPECT_THAT(ErrorOf(With(kTorchrun, {{"MASTER_PORT", "0"}})), HasSubstr("MASTER_PORT"));
  EXPECT_THAT(ErrorOf(With(kTorchrun, {{env::kStore, "nowhere"}})),
              HasSubstr("DTRAIN_STORE is \"nowhere\"; allowed: host:port"));
  EXPECT_THAT(ErrorOf(With(kTorchrun, {{env::kTokenFd, "1"}})), HasSubstr("DTRAIN_TOKEN_FD"));
}

TEST(ResolveJobEnv, RefusesASlurmStepThatContradictsItself) {
  EXPECT_THAT(ErrorOf(With(kSlurmStep, {{"SLURM_LOCALID", "1"}})),
              HasSubstr("gives 1 tasks on node 2, but SLURM_LOCALID is 1"));
  EXPECT_THAT(ErrorOf(Without(kSlurmStep, "SLURM_STEP_TASKS_PER_NODE")),
              HasSubstr("SLURM_STEP_TASKS_PER_NODE"));
  EXPECT_THAT(ErrorOf(With(kSlurmStep, {{"SLURM_STEP_TASKS_PER_NODE", "2(xx)"}})),
              HasSubstr("SLURM_STEP_TASKS_PER_NODE"));
  EXPECT_THAT(ErrorOf(With(kSlurmStep, {{"SLURM_STEP_NODELIST", "gpu[7"}})),
              HasSubstr("host list"));
}

TEST(ResolveJobEnv, AddressesGivenByTheUserWinOverThoseOfSlurm) {
  JobEnv job = Resolve(With(kSlurmStep, {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "1234"}}));
  EXPECT_EQ(job.store_host, "head");
  EXPECT_EQ(job.store_port, 1234);
  job = Resolve(With(Without(kSlurmStep, "SLURM_STEP_NUM_TASKS"), {{"SLURM_NTASKS", "7"}}));
  EXPECT_EQ(job.world_size, 7);
  EXPECT_EQ(job.world_size_name, "SLURM_NTASKS");
  EXPECT_EQ(Resolve(Without(kSlurmStep, "SLURM_STEP_NODELIST")).store_host, "127.0.0.1");
}

TEST(ResolveJobEnv, FindsThePlaceOfARankAmongTasksThatRepeat) {
  const auto tasks_of = [](const char* node, const char* tasks) {
    return Resolve(With(kSlurmStep, {{"SLURM_NODEID", node}, {"SLURM_STEP_TASKS_PER_NODE", tasks}}))
        .local_world_size;
  };
  EXPECT_EQ(tasks_of("0", "4,2(x3),1"), 4);
  EXPECT_EQ(tasks_of("1", "4,2(x3),1"), 2);
  EXPECT_EQ(tasks_of("3", "4,2(x3),1"), 2);
  EXPECT_EQ(tasks_of("4", "4,2(x3),1"), 1);
  EXPECT_THAT(ErrorOf(With(kSlurmStep,
                           {{"SLURM_NODEID", "5"}, {"SLURM_STEP_TASKS_PER_NODE", "4,2(x3),1"}})),
              HasSubstr("gives 0 tasks on node 5"));
}

TEST(ResolveJobEnv, ReadsEveryNumberOfMpirunAndHydra) {
  const JobEnv open_mpi = Resolve({{"OMPI_COMM_WORLD_RANK", "5"},
                                   {"OMPI_COMM_WORLD_SIZE", "8"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                   {"OMPI_MCA_ess_base_jobid", "77"}});
  EXPECT_EQ(open_mpi.rank, 5);
  EXPECT_EQ(open_mpi.world_size, 8);
  EXPECT_EQ(open_mpi.local_rank, 1);
  EXPECT_EQ(open_mpi.local_world_size, 4);
  EXPECT_EQ(open_mpi.run_id, "77");
  EXPECT_EQ(open_mpi.store_port, 20000) << "without a Slurm job";
  EXPECT_EQ(open_mpi.world_size_name, "OMPI_COMM_WORLD_SIZE");
  const JobEnv hydra = Resolve(
      {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(hydra.source, LaunchSource::kMpich);
  EXPECT_EQ(hydra.rank, 3);
  EXPECT_EQ(hydra.world_size, 4);
  EXPECT_EQ(hydra.local_rank, 1);
  EXPECT_EQ(hydra.node_rank, -1);
  EXPECT_EQ(Resolve({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}).node_rank, -1);
}

TEST(ResolveJobEnv, TheFirstAttemptOfDtrainIsZeroWhateverTorchrunCounts) {
  EXPECT_EQ(Resolve(With(kTorchrun, {{env::kAttempt, "0"}})).attempt, 0);
  EXPECT_EQ(Resolve(With(kTorchrun, {{env::kTokenFile, "/run/token"}})).token_file, "/run/token");
  EXPECT_EQ(Resolve(kTorchrun).token_fd, -1);
  EXPECT_FALSE(
      Resolve(With(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).torch_agent_store);
}

TEST(ResolveJobEnv, TakesEveryPortThatThereIs) {
  const auto store = [](const std::string& text) { return With(kTorchrun, {{env::kStore, text}}); };
  EXPECT_EQ(Resolve(store("a:1")).store_port, 1);
  EXPECT_EQ(Resolve(store("a:65535")).store_port, 65535);
  for (const char* const bad : {"a:0", "a:65536", "a:", "a:x", ":"}) {
    EXPECT_THAT(ErrorOf(store(bad)), HasSubstr("allowed: host:port")) << bad;
  }
  EXPECT_EQ(Resolve(With(kTorchrun, {{"MASTER_PORT", "65535"}})).store_port, 65535);
  EXPECT_THAT(ErrorOf(With(kTorchrun, {{"MASTER_PORT", "65536"}})), HasSubstr("MASTER_PORT"));
}

TEST(LaunchSourceName, IsWhatAPersonCallsIt) {
  using Source = LaunchSource;
  for (const auto& [source, name] :
       {std::pair(Source::kAlone, "alone"), std::pair(Source::kDtrain, "dtrain launch"),
        std::pair(Source::kTorchrun, "torchrun"), std::pair(Source::kOpenMpi, "Open MPI"),
        std::pair(Source::kMpich, "MPICH"), std::pair(Source::kSlurm, "Slurm"),
        std::pair(Source::kPmi, "PMI")}) {
    EXPECT_STREQ(LaunchSourceName(source), name);
  }
}

TEST(TunesHeap, ByAnyOfGlibcsVariables) {
  EXPECT_FALSE(TunesHeap({}));
  EXPECT_FALSE(TunesHeap({{"MALLOC_ARENA_MAX", ""}, {"HOME", "/root"}}));
  EXPECT_TRUE(TunesHeap({{"MALLOC_ARENA_MAX", "2"}}));
  EXPECT_TRUE(TunesHeap({{"GLIBC_TUNABLES", "glibc.malloc.check=1"}}));
}

TEST(ThreadsAreChosen, ByOpenMpsVariable) {
  EXPECT_FALSE(ThreadsAreChosen({}));
  EXPECT_FALSE(ThreadsAreChosen({{"OMP_NUM_THREADS", ""}}));
  EXPECT_TRUE(ThreadsAreChosen({{"OMP_NUM_THREADS", "1"}}));
}

TEST(TerminalIsDumb, WhereTermSaysSo) {
  EXPECT_FALSE(TerminalIsDumb({}));
  EXPECT_FALSE(TerminalIsDumb({{"TERM", "xterm"}}));
  EXPECT_TRUE(TerminalIsDumb({{"TERM", "dumb"}}));
}

TEST(AllocatorIsConfigured, ByEitherOfLibTorchsNames) {
  EXPECT_FALSE(AllocatorIsConfigured({}));
  EXPECT_FALSE(AllocatorIsConfigured({{"PYTORCH_ALLOC_CONF", ""}}));
  EXPECT_TRUE(AllocatorIsConfigured({{"PYTORCH_ALLOC_CONF", "max_split_size_mb:64"}}));
  EXPECT_TRUE(AllocatorIsConfigured({{"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False"}}));
}

TEST(ReadEnvironment, HoldsThisProcesssVariables) {
  ASSERT_EQ(setenv("DTRAIN_JOB_ENV_TEST", "a=b", 1), 0);
  EXPECT_EQ(ReadEnvironment().at("DTRAIN_JOB_ENV_TEST"), "a=b");
  unsetenv("DTRAIN_JOB_ENV_TEST");
}

TEST(Backtraces, AreWantedWhenTheVariableIsSetAndNotZero) {
  EXPECT_FALSE(WantsBacktrace({}));
  EXPECT_FALSE(WantsBacktrace({{"DTRAIN_BACKTRACE", ""}}));
  EXPECT_FALSE(WantsBacktrace({{"DTRAIN_BACKTRACE", "0"}}));
  EXPECT_TRUE(WantsBacktrace({{"DTRAIN_BACKTRACE", "1"}}));
}

}  // namespace
}  // namespace dtrain::job_env_test
