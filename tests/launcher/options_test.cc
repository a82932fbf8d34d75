#include "launcher/options.h"

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::options_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

LaunchOptions Good(const std::vector<std::string>& arguments, const Environment& environment = {}) {
  const auto parsed = ParseLaunch(arguments, environment);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? parsed->options : LaunchOptions();
}

std::string Bad(const std::vector<std::string>& arguments, const Environment& environment = {}) {
  const auto parsed = ParseLaunch(arguments, environment);
  EXPECT_TRUE(absl::IsInvalidArgument(parsed.status())) << parsed.status();
  return std::string(parsed.status().message());
}

std::vector<std::string> Notes(const std::vector<std::string>& arguments,
                               const Environment& environment = {}) {
  const auto parsed = ParseLaunch(arguments, environment);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? parsed->notes : std::vector<std::string>{};
}

TEST(ParseLaunch, LeavesTheProgramsArgumentsUntouched) {
  const LaunchOptions options =
      Good({"--nproc-per-node", "2", "./gpt", "c.json", "--nnodes", "--", "--help"});
  EXPECT_EQ(options.program, "./gpt");
  EXPECT_EQ(options.ranks_per_node, "2");
  EXPECT_THAT(options.arguments, ElementsAre("c.json", "--nnodes", "--", "--help"));
  EXPECT_EQ(Good({"--", "-odd-name"}).program, "-odd-name");
}

TEST(ParseLaunch, TakesTorchrunsAndDeepSpeedsSpellings) {
  EXPECT_EQ(Good({"--nproc_per_node=4", "p"}).ranks_per_node, "4");
  EXPECT_EQ(Good({"--num_gpus", "3", "p"}).ranks_per_node, "3");
  EXPECT_EQ(Good({"--max_restarts=2", "--standalone", "--no-python", "p"}).restarts_max, 2);
  EXPECT_EQ(Good({"-t", "3", "p"}).tee.For(5), 3);
  EXPECT_EQ(Good({"--rdzv-backend", "c10d", "--monitor_interval", "1", "p"}).program, "p");
  EXPECT_THAT(Good({"--signals-to-handle", "sigterm,SIGUSR1", "p"}).signals,
              ElementsAre(SIGTERM, SIGUSR1, SIGINT));
}

TEST(ParseLaunch, KeepsAProcessInReserveIfToldTo) {
  EXPECT_FALSE(Good({"--max-restarts", "1", "p"}).reserve);
  EXPECT_TRUE(Good({"--reserve", "p"}).reserve) << "the number of nodes may be known later";
  EXPECT_THAT(Bad({"--reserve", "--no-reuse", "--max-restarts", "1", "p"}),
              HasSubstr("--reserve and --no-reuse contradict each other"));
  EXPECT_THAT(Bad({"--bind_cores_to_rank", "--no-bind", "p"}),
              HasSubstr("--bind-cores and --no-bind contradict each other"));
}

TEST(ParseLaunch, TakesDefaultsFromPetVariablesAndLetsTheCommandLineWin) {
  const Environment environment = {
      {"PET_NPROC_PER_NODE", "4"}, {"PET_NNODES", "2"},      {"PET_NODE_RANK", "1"},
      {"PET_MASTER_ADDR", "n0"},   {"PET_MASTER_PORT", "1"}, {"PET_TOKEN_FILE", "t"},
      {"PET_STANDALONE", "0"},
  };
  const LaunchOptions options = Good({"--nproc-per-node", "3", "p"}, environment);
  EXPECT_EQ(options.ranks_per_node, "3");
  EXPECT_EQ(options.nodes, 2);
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.rendezvous, "n0:1");
  EXPECT_TRUE(options.bind_cores);
  EXPECT_FALSE(Good({"p"}, {{"PET_NO_BIND", "1"}}).bind_cores) << "a switch is on with 1";
}

TEST(ParseLaunch, AnswersPetVariablesThatSetNothing) {
  EXPECT_THAT(Bad({"p"}, {{"PET_NO_BIND", "true"}}),
              HasSubstr("PET_NO_BIND is \"true\"; allowed: 0 or 1"));
  EXPECT_TRUE(Good({"p"}, {{"PET_NO_BIND", ""}}).bind_cores);
  EXPECT_THAT(Bad({"p"}, {{"PET_RUN_PATH", "1"}}),
              HasSubstr("PET_RUN_PATH is not supported: ranks are programs"));
  EXPECT_THAT(Notes({"p"}, {{"PET_RUN_PATH", "0"}, {"PET_TYPE", "1"}, {"PETS", "1"}}), IsEmpty());
  EXPECT_THAT(Notes({"p"}, {{"PET_NPROC_PER_NOD", "4"}}),
              ElementsAre("PET_NPROC_PER_NOD has no effect; did you mean PET_NPROC_PER_NODE?"));
}

const Environment kSlurmJob = {
    {"SLURM_JOB_ID", "42"}, {"SLURM_JOB_NUM_NODES", "2"}, {"SLURM_JOB_NODELIST", "n[1-2]"}};

TEST(ParseLaunch, InASlurmJobItStartsItselfOnAllNodes) {
  const LaunchOptions options = Good({"p"}, kSlurmJob);
  ASSERT_TRUE(options.place.has_value());
  EXPECT_TRUE(options.place->starts_step);
  EXPECT_EQ(options.nodes, 2);
  EXPECT_EQ(options.rendezvous, "n1:20042");
  EXPECT_EQ(options.token_file, "-");
  EXPECT_TRUE(options.ranks_by_gpus);
  EXPECT_THAT(options.signals, ElementsAre(SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1));
  EXPECT_EQ(Good({"--token-file", "t", "p"}, kSlurmJob).token_file, "t");
  EXPECT_FALSE(Good({"--nproc-per-node", "3", "p"}, kSlurmJob).ranks_by_gpus);
  EXPECT_THAT(Good({"--signals-to-handle", "SIGQUIT", "p"}, kSlurmJob).signals,
              ElementsAre(SIGQUIT, SIGTERM, SIGINT, SIGUSR1));
  EXPECT_THAT(Bad({"--nnodes", "3", "p"}, kSlurmJob), HasSubstr("SLURM_JOB_NUM_NODES=2"));
  const LaunchOptions alone = Good({"--standalone", "p"}, kSlurmJob);
  EXPECT_FALSE(alone.place.has_value());
  EXPECT_EQ(alone.nodes, 1);
  EXPECT_FALSE(alone.ranks_by_gpus);
}

TEST(ParseLaunch, InASlurmStepItIsOneNodeOfIt) {
  const Environment step = {{"SLURM_JOB_ID", "42"},
                            {"SLURM_STEP_ID", "0"},
                            {"SLURM_NODEID", "1"},
                            {"SLURM_STEP_NUM_NODES", "2"},
                            {"SLURM_STEP_NODELIST", "a[1-2]"},
                            {"SLURM_STEP_NUM_TASKS", "2"}};
  const LaunchOptions options = Good({"p"}, step);
  EXPECT_FALSE(options.place->starts_step);
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.rendezvous, "a1:20042");
  EXPECT_EQ(options.token_file, "") << "node 0 leaves one in the run directory";
  EXPECT_TRUE(options.quiet) << "node 0 speaks for all";
}

TEST(ParseLaunch, TakesTheNodesFromKubernetesUnlessAFlagSaysOtherwise) {
  const Environment group = {
      {"LWS_LEADER_ADDRESS", "a-0.a"}, {"LWS_GROUP_SIZE", "4"}, {"LWS_WORKER_INDEX", "3"}};
  const LaunchOptions options = Good({"--token-file", "t", "p"}, group);
  EXPECT_EQ(options.nodes, 4);
  EXPECT_EQ(options.node_rank, 3);
  EXPECT_EQ(options.rendezvous, "a-0.a:29500");
  EXPECT_FALSE(options.ranks_by_gpus);
  EXPECT_EQ(options.signals.size(), 4U);
  const LaunchOptions typed = Good(
      {"--token-file", "t", "--node-rank", "2", "--master-addr", "b", "--master-port", "7", "p"},
      group);
  EXPECT_EQ(typed.node_rank, 2);
  EXPECT_EQ(typed.rendezvous, "b:7");
  EXPECT_THAT(Bad({"p"}, group), HasSubstr("--token-file"));
  // Kubeflow Trainer gives all of it in PET_* variables, beside the index that its Job gives.
  const Environment trainer = {{"PET_NNODES", "2"},
                               {"PET_NODE_RANK", "1"},
                               {"PET_MASTER_PORT", "29500"},
                               {"JOB_COMPLETION_INDEX", "1"},
                               {"PET_NPROC_PER_NODE", "8"},
                               {"HOSTNAME", "run-node-0-1"},
                               {"PET_MASTER_ADDR", "run-node-0-0.run"}};
  const LaunchOptions train_job = Good({"--token-file", "t", "p"}, trainer);
  EXPECT_EQ(train_job.nodes, 2);
  EXPECT_EQ(train_job.node_rank, 1);
  EXPECT_EQ(train_job.rendezvous, "run-node-0-0.run:29500");
  Environment wrong = trainer;
  wrong["PET_NODE_RANK"] = "0";
  EXPECT_THAT(Bad({"--token-file", "t", "p"}, wrong),
              HasSubstr("PET_NODE_RANK=0 contradicts JOB_COMPLETION_INDEX=1"));
}

TEST(ParseLaunch, AHostfileTakesTheFlagsThatChooseHostsAndPassesTheOthersOn) {
  const LaunchOptions options = Good({"-H",
                                      "hosts",
                                      "--num_nodes=2",
                                      "--num-gpus",
                                      "3",
                                      "--ssh_port",
                                      "22",
                                      "--launcher_args",
                                      "-l me",
                                      "--export",
                                      "A=1",
                                      "--export",
                                      "B",
                                      "--master_port",
                                      "7",
                                      "--dry-run",
                                      "--max-restarts",
                                      "2",
                                      "-t",
                                      "3",
                                      "--no-bind",
                                      "p",
                                      "--export",
                                      "x"},
                                     {{"PET_ROLE", "a"}, {"PET_MASTER_ADDR", "n0"}});
  EXPECT_EQ(options.hosts.hostfile, "hosts");
  EXPECT_EQ(options.hosts.hosts_max, 2);
  EXPECT_EQ(options.hosts.slots_max, 3);
  EXPECT_EQ(options.hosts.ssh_port, "22");
  EXPECT_EQ(options.hosts.launcher_args, "-l me");
  EXPECT_THAT(options.hosts.exports, ElementsAre("A=1", "B"));
  EXPECT_EQ(options.hosts.address, "n0");
  EXPECT_EQ(options.hosts.port, 7);
  EXPECT_TRUE(options.hosts.dry_run);
  EXPECT_THAT(options.hosts.flags,
              ElementsAre("--role", "a", "--max-restarts", "2", "-t", "3", "--no-bind"));
  EXPECT_THAT(options.arguments, ElementsAre("--export", "x"));
  const LaunchOptions plain = Good({"--hostfile", "h", "p"});
  EXPECT_EQ(plain.hosts.hosts_max, 0);
  EXPECT_EQ(plain.hosts.slots_max, 0);
  EXPECT_EQ(plain.hosts.port, 0);
  EXPECT_EQ(Good({"--hostfile", "h", "-i", "a:0", "p"}).hosts.include, "a:0");
  EXPECT_EQ(Good({"--hostfile", "h", "-e", "a", "p"}).hosts.exclude, "a");
}

TEST(ParseLaunch, RefusesWhatContradictsAHostfileOrNeedsOne) {
  for (const char* const flag :
       {"--node-rank", "--rdzv-endpoint", "--token-file", "--local-addr"}) {
    EXPECT_THAT(Bad({"--hostfile", "h", flag, "1", "p"}),
                HasSubstr(absl::StrCat(flag, " contradicts --hostfile")));
  }
  EXPECT_THAT(Bad({"--hostfile", "h", "--standalone", "p"}),
              HasSubstr("--standalone contradicts --hostfile"));
  for (const char* const flag :
       {"--include", "--exclude", "--ssh-port", "--launcher-args", "--export", "--topology-conf",
        "--remote-dtrain", "--ssh-fanout"}) {
    EXPECT_THAT(Bad({flag, "1", "p"}), HasSubstr(absl::StrCat(flag, " needs --hostfile FILE")));
  }
  EXPECT_TRUE(Good({"--dry-run", "p"}).hosts.dry_run) << "of this node";
  EXPECT_THAT(Bad({"--network-profile", "gpc", "p"}),
              HasSubstr("--network-profile is \"gpc\"; allowed: oci, gcp, aws-efa, azure"));
  EXPECT_THAT(Bad({"--hostfile", "", "p"}), HasSubstr("--hostfile is \"\""));
  for (const char* const number : {"0", "-1", "auto", "65537"}) {
    EXPECT_THAT(Bad({"--hostfile", "h", "--nproc-per-node", number, "p"}),
                HasSubstr("--nproc-per-node is \""));
    EXPECT_THAT(Bad({"--hostfile", "h", "--ssh-port", number, "p"}), HasSubstr("--ssh-port is \""));
  }
  for (const char* const number : {"1", "-1", "auto", "1025", ""}) {
    EXPECT_THAT(Bad({"--hostfile", "h", "--ssh-fanout", number, "p"}),
                HasSubstr("--ssh-fanout is \""));
  }
  EXPECT_EQ(Good({"--hostfile", "h", "p"}).hosts.fanout, 64);
  EXPECT_EQ(Good({"--hostfile", "h", "--ssh-fanout", "0", "p"}).hosts.fanout, 0);
  EXPECT_TRUE(Good({"--hostfile", "h", "--ssh-fanout", "2", "p"}).hosts.flags.empty());
}

TEST(ParseLaunch, AnEmptyValueIsEmptyAndTakesNoOtherWord) {
  for (const std::vector<std::string>& id :
       {std::vector<std::string>{"--rdzv-id="}, {"--rdzv_id="}, {"--rdzv-id", ""}}) {
    std::vector<std::string> arguments = id;
    arguments.insert(arguments.end(), {"--nproc-per-node", "3", "p", "--set="});
    const LaunchOptions options = Good(arguments);
    EXPECT_EQ(options.rendezvous_id, "");
    EXPECT_EQ(options.ranks_per_node, "3");
    EXPECT_EQ(options.program, "p");
    EXPECT_THAT(options.arguments, ElementsAre("--set="));
  }
  EXPECT_EQ(Good({"--nproc-per-node", "3", "p"}, {{"PET_RDZV_ID", ""}}).ranks_per_node, "3");
  EXPECT_THAT(Bad({"p"}, {{"PET_NNODES", ""}}), HasSubstr("--nnodes is \"\""));
  EXPECT_THAT(Bad({"-t", "", "p"}), HasSubstr("--tee"));
}

TEST(ParseLaunch, TimesAreSecondsAndHaveTheirDefaults) {
  const LaunchOptions defaults = Good({"p"});
  EXPECT_EQ(defaults.stop_grace, absl::Seconds(300));
  EXPECT_EQ(defaults.exit_barrier, absl::Seconds(300));
  EXPECT_EQ(defaults.join_timeout, absl::Seconds(300));
  const LaunchOptions chosen = Good({"--stop-grace", "1.5", "--exit-barrier", "0", "--rdzv-conf",
                                     "read_timeout=3, join_timeout=60", "p"});
  EXPECT_EQ(chosen.stop_grace, absl::Milliseconds(1500));
  EXPECT_EQ(chosen.exit_barrier, absl::ZeroDuration());
  EXPECT_EQ(chosen.join_timeout, absl::Seconds(60));
}

TEST(ParseLaunch, ARangeOfNodesMayHaveSpares) {
  const LaunchOptions options =
      Good({"--nnodes", "2:4", "--node-rank", "9", "--rdzv-endpoint", "h:1", "--token-file", "t",
            "--rdzv-conf", "last_call_timeout=2", "p"});
  EXPECT_EQ(options.nodes_min, 2);
  EXPECT_EQ(options.nodes, 4);
  EXPECT_EQ(options.node_rank, 9);
  EXPECT_EQ(options.last_call, absl::Seconds(2));
  const LaunchOptions hosts = Good({"--hostfile", "f", "--nnodes", "2:4", "p"});
  EXPECT_EQ(hosts.hosts.hosts_max, 0) << "all hosts of the file are started";
  const LaunchOptions fixed =
      Good({"--nnodes", "3:3", "--rdzv-endpoint", "h:1", "--token-file", "t", "p"});
  EXPECT_EQ(fixed.nodes_min, 3);
  EXPECT_EQ(fixed.nodes, 3);
}

TEST(ParseLaunch, NamesTheNearestFlag) {
  EXPECT_THAT(Bad({"--nproc-per-nod", "2", "p"}), HasSubstr("did you mean --nproc-per-node?"));
  EXPECT_THAT(Bad({"--zzzzzzzzzzzz", "p"}), HasSubstr("unknown option --zzzzzzzzzzzz"));
}

TEST(ParseLaunch, NotesFlagsOfTorchrunThatHaveNoEffect) {
  EXPECT_THAT(Notes({"--rdzv-backend=c10d", "--standalone", "--no-python", "p"}), IsEmpty())
      << "they say what is done anyway";
  for (const auto& [flag, value] :
       std::vector<std::pair<std::string, std::string>>{{"--start-method", "spawn"},
                                                        {"--start_method", "forkserver"},
                                                        {"--event-log-handler", "null"},
                                                        {"--monitor-interval", "0.1"},
                                                        {"--redirects", "3"},
                                                        {"--logs-specs", "mine"},
                                                        {"--duplicate-stdout-filters", "a,b"},
                                                        {"--duplicate_stderr_filters", ""},
                                                        {"--numa-binding", "core-complex"}}) {
    const std::string known = absl::StrReplaceAll(flag, {{"_", "-"}});
    const auto is_noted = ElementsAre(HasSubstr(absl::StrCat(known, " has no effect: ")));
    EXPECT_THAT(Notes({flag, value, "p"}), is_noted);
    EXPECT_THAT(Notes({flag + "=" + value, "p", flag}), is_noted);
  }
  EXPECT_THAT(Notes({"-r", "1", "-r", "2", "p"}), SizeIs(1)) << "once";
  EXPECT_THAT(Notes({"p"}, {{"PET_START_METHOD", "fork"}}), SizeIs(1));
  EXPECT_THAT(Notes({"--hostfile", "h", "--start-method", "fork", "p"}), SizeIs(1));
  EXPECT_THAT(Notes({"--rdzv-conf", "is_host=1,join_timeout=3,keep_alive_interval=1", "p"}),
              ElementsAre(HasSubstr("--rdzv-conf is_host has no effect: "),
                          HasSubstr("--rdzv-conf keep_alive_interval has no effect: ")));
}

TEST(ParseLaunch, RefusesFlagsOfTorchrunThatAskForSomethingElse) {
  EXPECT_THAT(Bad({"--run-path", "/a.py"}),
              HasSubstr("--run-path is not supported: ranks are programs; start a Python file as"));
  EXPECT_THAT(Bad({"-m", "a.b"}), HasSubstr("-m is not supported: "));
  EXPECT_THAT(Bad({"--virtual_local_rank", "p"}),
              AllOf(HasSubstr("--virtual_local_rank is not supported"), HasSubstr("leave it out")));
  for (const char* const backend : {"etcd", "etcd-v2", "c10", "static,c10d", ""}) {
    EXPECT_THAT(Bad({"--rdzv-backend", backend, "p"}),
                AllOf(HasSubstr(absl::StrCat("--rdzv-backend is \"", backend, "\"; allowed: c10d")),
                      HasSubstr("it can be left out, as the nodes always meet at node 0")));
  }
  EXPECT_THAT(Bad({"--start-method", "thread", "p"}),
              HasSubstr("--start-method is \"thread\"; allowed: spawn, fork, forkserver; "));
  EXPECT_THAT(Bad({"--numa-binding", "nodes", "p"}),
              HasSubstr("--numa-binding is \"nodes\"; allowed: node, socket, exclusive, "));
  EXPECT_THAT(Bad({"--numa-binding", "node", "--no-bind", "p"}),
              HasSubstr("--numa-binding and --no-bind contradict each other"));
  EXPECT_THAT(Bad({"--monitor-interval", "often", "p"}),
              HasSubstr("--monitor-interval is \"often\"; allowed: seconds"));
}

TEST(ParseLaunch, NamesTheNearestKeyOfTheRendezvous) {
  EXPECT_THAT(Bad({"--rdzv-conf", "join_timout=60", "p"}),
              HasSubstr("--rdzv-conf has the unknown key \"join_timout\"; did you mean "
                        "join_timeout? Allowed: join_timeout, last_call_timeout"));
  EXPECT_THAT(Bad({"--rdzv-conf", "join_timeout=60,zzzzzz=1", "p"}),
              HasSubstr("unknown key \"zzzzzz\"; allowed: join_timeout, last_call_timeout"));
  EXPECT_THAT(Bad({"--rdzv-conf", "=1", "p"}), HasSubstr("unknown key \"\"; allowed: "));
}

TEST(ParseLaunch, RefusesBadValuesByName) {
  EXPECT_THAT(Bad({"--nproc-per-node", "0", "p"}), AllOf(HasSubstr("\"0\""), HasSubstr("auto")));
  EXPECT_THAT(Bad({"--nproc-per-node", "many", "p"}), HasSubstr("\"many\""));
  EXPECT_THAT(Bad({"--nnodes", "4:2", "p"}), HasSubstr("MIN must not be above MAX"));
  EXPECT_THAT(Bad({"--nnodes", "1:2:3", "p"}), HasSubstr("allowed: N or MIN:MAX"));
  EXPECT_THAT(Bad({"--nnodes", "1:4", "p"}), HasSubstr("--nnodes 1:4 needs --rdzv-endpoint"));
  EXPECT_THAT(Bad({"--nnodes", "1:4", "--standalone", "p"}), HasSubstr("means one node"));
  EXPECT_THAT(Bad({"--nnodes", "2", "p"}), HasSubstr("--rdzv-endpoint"));
  EXPECT_THAT(Bad({"--nnodes", "2", "--rdzv-endpoint", "h:1", "p"}), HasSubstr("--token-file"));
  EXPECT_THAT(Bad({"--node-rank", "1", "p"}), HasSubstr("--node-rank"));
  EXPECT_THAT(Bad({"--max-restarts", "-1", "p"}), HasSubstr("--max-restarts"));
  for (const char* const seconds : {"-1", "nan", "inf", "5m", ""}) {
    EXPECT_THAT(Bad({"--stop-grace", seconds, "p"}), HasSubstr("--stop-grace is \""));
    EXPECT_THAT(Bad({"--exit-barrier", seconds, "p"}), HasSubstr("--exit-barrier is \""));
  }
  EXPECT_THAT(Bad({"--tee", "4", "p"}), HasSubstr("--tee"));
  EXPECT_THAT(Bad({"--signals-to-handle", "SIGKILL", "p"}), HasSubstr("SIGKILL"));
  EXPECT_THAT(Bad({"--launcher", "pdsh", "p"}), HasSubstr("not supported"));
  EXPECT_THAT(Bad({"--rdzv-conf", "join_timeout", "p"}),
              AllOf(HasSubstr("has \"join_timeout\""), HasSubstr("KEY=VALUE")));
  EXPECT_THAT(Bad({"--nproc-per-node", "100000", "p"}), HasSubstr("from 1 to 65536"));
  EXPECT_THAT(Bad({"--nproc-per-node"}), HasSubstr("needs a value"));
  EXPECT_THAT(Bad({}), HasSubstr("no program"));
}

TEST(ParseLaunch, RefusesAMeetingPointThatNodesCouldNotFindWhoeverGaveIt) {
  const std::vector<std::string> two = {"--nnodes", "1:2", "--token-file", "t", "p"};
  EXPECT_THAT(Bad(two, {{"PET_RDZV_ENDPOINT", "n0:0"}}), HasSubstr("--rdzv-endpoint is \"n0:0\""));
  EXPECT_THAT(Bad(two, {{"PET_MASTER_ADDR", "n0"}, {"PET_MASTER_PORT", "0"}}),
              HasSubstr("--master-port is \"0\""));
  const Environment pod = {
      {"MASTER_ADDR", "a b"}, {"MASTER_PORT", "29500"}, {"RANK", "0"}, {"WORLD_SIZE", "2"}};
  EXPECT_THAT(Bad({"--token-file", "t", "p"}, pod),
              HasSubstr("the address of node 0 by PyTorchJob is \"a b:29500\""));
  EXPECT_THAT(Bad({"--hostfile", "h", "--master-addr", "a b", "p"}),
              HasSubstr("--master-addr is \"a b\""));
  EXPECT_EQ(Good({"--hostfile", "h", "--master-addr", "[::1]", "p"}).hosts.address, "::1");
  EXPECT_EQ(Good({"--rdzv-endpoint", "localhost:0", "p"}).nodes, 1) << "as with torchrun";
}

TEST(ParseLaunch, ShowsHelpWithExamples) {
  const auto parsed = ParseLaunch({"--help"}, {});
  ASSERT_TRUE(parsed.ok());
  EXPECT_THAT(parsed->help, AllOf(HasSubstr("--nproc-per-node"), HasSubstr("Examples:")));
}

TEST(ParseLaunch, HasTorchrunsDefaults) {
  const LaunchOptions options = Good({"p"});
  EXPECT_EQ(options.nodes, 1);
  EXPECT_EQ(options.node_rank, 0);
  EXPECT_EQ(options.restarts_max, 0);
  EXPECT_EQ(options.tee.For(0), 0);
  EXPECT_TRUE(options.bind_cores);
  EXPECT_FALSE(options.quiet);
  EXPECT_THAT(options.signals, ElementsAre(SIGTERM, SIGINT, SIGHUP, SIGQUIT));
  EXPECT_FALSE(Good({"--no-bind", "p"}).bind_cores);
  EXPECT_TRUE(Good({"-q", "p"}).quiet);
  EXPECT_EQ(Good({"--max-restarts", "7", "p"}).restarts_max, 7);
}

TEST(ParseStreams, ReadsOneNumberOrOneByLocalRank) {
  const auto choice = ParseStreams("--tee", "0:1,2:3");
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->For(0), 1);
  EXPECT_EQ(choice->For(1), 0);
  EXPECT_EQ(choice->For(2), 3);
  for (const char* bad : {"", "x", "0:4", "0:1,", "-1:2", "0:1:2"}) {
    EXPECT_FALSE(ParseStreams("--tee", bad).ok()) << bad;
  }
}

TEST(CheckLocalRanks, NamesTheFlagAndTheRanksThatThereAre) {
  const auto error = [](const std::vector<std::string>& flags, int ranks) {
    std::vector<std::string> words = flags;
    words.emplace_back("p");
    return std::string(CheckLocalRanks(Good(words), ranks).message());
  };
  EXPECT_EQ(error({"--tee", "3"}, 1), "") << "all ranks";
  EXPECT_EQ(error({"--tee", "0:1,3:2", "--local-ranks-filter", "3,0"}, 4), "");
  EXPECT_EQ(error({"--tee", "3:2,0:1"}, 3),
            "--tee names local rank 3; allowed with 3 ranks on a node: 0 to 2");
  EXPECT_EQ(error({"--local-ranks-filter", "1,0"}, 1),
            "--local-ranks-filter names local rank 1; allowed with 1 rank on a node: 0");
}

TEST(RanksOnNode, CountsTheMachine) {
  EXPECT_EQ(*RanksOnNode("auto", 8, 0), 8);
  EXPECT_EQ(*RanksOnNode("auto", 8, 2), 2);
  EXPECT_EQ(*RanksOnNode("cpu", 8, 2), 8);
  EXPECT_EQ(*RanksOnNode("gpu", 8, 2), 2);
  EXPECT_FALSE(RanksOnNode("gpu", 8, 0).ok());
}

}  // namespace
}  // namespace dtrain::launcher::options_test
