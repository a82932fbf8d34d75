// The command and the environment of the step by which a launcher starts itself on all nodes.
#include "launcher/cluster/slurm_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/launch.h"

namespace dtrain::launcher::slurm_step_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const Environment kAllocation = {
    {"SLURM_JOB_ID", "42"}, {"SLURM_JOB_NUM_NODES", "2"}, {"SLURM_JOB_NODELIST", "n[1-2]"}};

std::vector<std::string> CommandOf(const std::vector<std::string>& arguments) {
  const Environment& environment = kAllocation;
  const auto parsed = ParseLaunch(arguments, environment);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? StepCommand({parsed->options, arguments, environment}, "/usr/bin/srun",
                                   "/opt/dtrain/bin/dtrain")
                     : std::vector<std::string>();
}

TEST(StepCommand, RunsThisLauncherOnceANodeWithItsArgumentsAndTheTokenOnStdin) {
  EXPECT_THAT(
      CommandOf({"--tee", "3", "--", "./gpt", "c.json", "--set", "a b"}),
      ElementsAre("/usr/bin/srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1",
                  "--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=0", "--wait=0",
                  "--export=ALL", "--input=all", "/opt/dtrain/bin/dtrain", "launch", "--token-file",
                  "-", "--tee", "3", "--", "./gpt", "c.json", "--set", "a b"));
}

TEST(StepCommand, AJobThatGrowsAndShrinksUsesAllNodesOfTheAllocation) {
  for (const char* const nodes : {"1:2", "2:4"}) {
    const auto command = CommandOf({"--nnodes", nodes, "./gpt"});
    EXPECT_THAT(command, Contains("--nodes=2")) << nodes;
    EXPECT_THAT(command, Contains("--ntasks=2")) << nodes;
  }
}

TEST(StepCommand, ATokenFileOfTheUserStays) {
  const auto command = CommandOf({"--token-file", "/shared/token", "./gpt"});
  EXPECT_THAT(command, Contains("--input=none"));
  EXPECT_THAT(command, Contains("/shared/token"));
  EXPECT_THAT(command, Not(Contains("-")));
}

// The port says where nodes meet: each launcher computes it from Slurm's variables.
TEST(StepCommand, HasNoEndpoint) {
  for (const std::string& word : CommandOf({"./gpt"})) {
    EXPECT_EQ(word.find("20042"), std::string::npos) << word;
    EXPECT_THAT(word, Not(StartsWith("--rdzv")));
  }
}

TEST(DescribeStep, ShowsTheCommandAsItWouldBeStarted) {
  const std::vector<std::string> arguments = {"--dry-run", "--tee", "3",
                                              "./gpt",     "a b",   "--dry-run"};
  Environment environment = kAllocation;
  environment["SLURM_CPUS_PER_TASK"] = "4";
  const auto parsed = ParseLaunch(arguments, environment);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(DescribeStep({parsed->options, arguments, environment}, "srun", "/opt/dtrain"),
            "Slurm job 42: starts itself on its 2 nodes by srun; they meet at n1:20042\n"
            "  command: srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpu-bind=none --mpi=none "
            "--kill-on-bad-exit=0 --wait=0 --export=ALL --input=all /opt/dtrain launch "
            "--token-file - --tee 3 ./gpt 'a b' --dry-run\n"
            "  sent on its stdin: token (hidden)\n"
            "  left out of its environment: SLURM_CPUS_PER_TASK\n"
            "  with --dry-run behind launch, this command shows the ranks of each node\n");
}

// It describes no ranks of the node on which it was asked, which may be a login node.
TEST(DescribeStep, IsTheAnswerToADryRunInAnAllocation) {
  Environment environment = kAllocation;
  environment["PATH"] = "/nowhere";
  testing::internal::CaptureStderr();
  EXPECT_EQ(LaunchCommand({"--dry-run", "/bin/true"}, environment), 64);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("srun"));
}

TEST(StepEnvironment, DropsWhatWouldGiveALauncherTheShareOfOneRank) {
  const Environment kept = {{"SLURM_JOB_ID", "42"}, {"SLURM_GPUS_PER_NODE", "8"}, {"PATH", "/bin"}};
  Environment all = kept;
  for (const char* const name :
       {"SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK",
        "SLURM_NTASKS_PER_GPU", "SLURM_GPU_BIND", "SLURM_DISTRIBUTION"}) {
    all[name] = "1";
  }
  EXPECT_EQ(StepEnvironment(all), kept);
}

}  // namespace
}  // namespace dtrain::launcher::slurm_step_test
