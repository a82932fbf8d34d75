// The commands of `dtrain`, their descriptions, and the error for a misspelt one.
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/commands/catalog.h"
#include "launcher/config_check.h"
#include "tests/launcher/launched_job.h"

namespace dtrain::launcher::commands_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// The programs in its folder are commands, each described, and none is called "(program ...)".
TEST(Dtrain, HelpDescribesEveryProgramBesideIt) {
  LaunchedJob help({"--help"});
  EXPECT_EQ(help.Wait(), 0);
  EXPECT_THAT(help.Out(), Not(HasSubstr("run the program")));
  const auto folder = std::filesystem::path(DTRAIN_PROGRAM).parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.rfind("dtrain-", 0) == 0) {
      EXPECT_THAT(help.Out(), HasSubstr(absl::StrCat("  ", CommandOf(name.substr(7)), " ")));
    }
  }
  LaunchedJob alone({});
  EXPECT_EQ(alone.Wait(), 64);
  EXPECT_EQ(alone.Err(), help.Out());
}

// The program runs as the ranks of a job, and uses its store and its key.
TEST(Topo, MeasuresBetweenHostsAndNotBetweenRanksOfOne) {
  LaunchedJob job({"launch", "--nproc-per-node", "2", "--run-dir", "run", "--", DTRAIN_PROGRAM,
                   "topo", "--measure"});
  EXPECT_EQ(job.Wait(), 64) << job.Err();
  EXPECT_THAT(job.Err(), HasSubstr("ranks 0 and 1 are both on host"));
  LaunchedJob alone({"topo", "--measure"});
  EXPECT_EQ(alone.Wait(), 64);
  EXPECT_THAT(alone.Err(), HasSubstr("start it as its ranks: dtrain launch --hostfile"));
}

// A folder with the launcher and programs of our own choice.
TEST(Dtrain, AGroupListsWhatThereIsAndNamesTheNearest) {
  LaunchedJob place({"exit-codes"});
  EXPECT_EQ(place.Wait(), 0);
  const std::string program = place.folder() + "/dtrain";
  std::filesystem::copy_file(DTRAIN_PROGRAM, program);
  for (const char* name : {"/dtrain-bench-comm", "/dtrain-bench-mfu", "/dtrain-checkpoint"}) {
    ASSERT_TRUE(WriteFileAtomic(place.folder() + name, "#!/bin/sh\necho \"$0 $*\"\n", 0755).ok());
  }
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"bench", "comn"},
       "dtrain: unknown command bench comn; did you mean bench comm? There are: bench comm, bench "
       "mfu\n"},
      {{"bench", "frobnicate"},
       "dtrain: unknown command bench frobnicate; there are: bench comm, bench mfu\n"},
      {{"chekpoint"},
       "dtrain: unknown command chekpoint; did you mean checkpoint? There are: train, launch, "
       "finetune, "
       "completion, ps, status, stop, drain, logs, checkpoint, trace, doctor, topo, env, "
       "exit-codes, bench\n"}};
  for (const auto& [arguments, message] : wrong) {
    std::vector<std::string> words = {program};
    words.insert(words.end(), arguments.begin(), arguments.end());
    LaunchedJob job({}, {"sh", "-c", absl::StrCat("exec ", absl::StrJoin(words, " "))});
    EXPECT_EQ(job.Wait(), 64);
    EXPECT_EQ(job.Err(), message);
  }
  LaunchedJob alone({}, {"sh", "-c", "exec " + program + " bench"});
  EXPECT_EQ(alone.Wait(), 64);
  EXPECT_THAT(alone.Err(), AllOf(HasSubstr("bench comm "), HasSubstr("bench mfu "),
                                 Not(HasSubstr("bench kernels"))));
  LaunchedJob help({}, {"sh", "-c", "exec " + program + " bench --help"});
  EXPECT_EQ(help.Wait(), 0);
  EXPECT_EQ(help.Out(), alone.Err());
  LaunchedJob runs({}, {"sh", "-c", "exec " + program + " bench comm --ranks 3"});
  EXPECT_EQ(runs.Wait(), 0);
  EXPECT_EQ(runs.Out(), place.folder() + "/dtrain-bench-comm --ranks 3\n");
  LaunchedJob explains({}, {"sh", "-c", program + " help bench comm"});
  EXPECT_EQ(explains.Wait(), 0);
  EXPECT_EQ(explains.Out(), place.folder() + "/dtrain-bench-comm --help\n");
}

// A folder with the launcher, a folder that looks like LibTorch, and programs of our own.
TEST(Dtrain, TrainEndsWithTheExitCodeOfTheProgramThatWritesItsCorpus) {
  LaunchedJob place({"exit-codes"});
  EXPECT_EQ(place.Wait(), 0);
  const std::string& folder = place.folder();
  for (const char* name : {"/bin", "/torch/lib", "/share/dtrain/configs"}) {
    ASSERT_TRUE(MakeDirectories(folder + name).ok());
  }
  std::filesystem::copy_file(DTRAIN_PROGRAM, folder + "/bin/dtrain");
  ASSERT_TRUE(WriteFileAtomic(folder + "/torch/lib/libtorch_cpu.so", "").ok());
  ASSERT_TRUE(WriteFileAtomic(folder + "/share/dtrain/configs/gpt.json", "{}").ok());
  ASSERT_TRUE(WriteFileAtomic(folder + "/bin/dtrain-gpt", "#!/bin/sh\nexit 1\n", 0755).ok());
  const std::vector<std::pair<std::string, int>> ends = {{"exit 75", 75}, {"kill -9 $$", 137}};
  for (const auto& [end, code] : ends) {
    const std::string script = absl::StrCat("#!/bin/sh\n", end, "\n");
    ASSERT_TRUE(WriteFileAtomic(folder + "/bin/dtrain-data", script, 0755).ok());
    LaunchedJob job(
        {}, {"sh", "-c",
             absl::StrCat("DTRAIN_TORCH=", folder, "/torch exec ", folder, "/bin/dtrain train")});
    EXPECT_EQ(job.Wait(), code) << job.Err();
    EXPECT_THAT(job.Err(), HasSubstr(absl::StrCat("dtrain-data ended with exit code ", code)));
  }
}

// In the shells themselves, which call the function as they do at a press of Tab.
TEST(Completion, OffersWhatAShellCanType) {
  const std::string bash = absl::StrCat(
      "export PATH=", std::filesystem::path(DTRAIN_PROGRAM).parent_path().string(), ":$PATH\n",
      "source <(dtrain completion bash)\n"
      "tab() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _dtrain; echo \"${COMPREPLY[@]}\"; }\n"
      "tab dtrain lau; tab dtrain launch --nno; tab dtrain logs --rank ''; tab dtrain ben\n");
  LaunchedJob shell({}, {"bash", "-c", bash});
  EXPECT_EQ(shell.Wait(), 0) << shell.Err();
  EXPECT_EQ(shell.Out(), "launch\n--nnodes\n\nbench\n");
  LaunchedJob other({"completion", "fish"});
  EXPECT_EQ(other.Wait(), 64);
  EXPECT_THAT(other.Err(), AllOf(HasSubstr("fish"), HasSubstr("bash"), HasSubstr("zsh")));
}

// groff warns of each request or character that it does not know.
TEST(ManPages, AreReadWithoutAWarning) {
  LaunchedJob pages({"man-pages", "pages"});
  ASSERT_EQ(pages.Wait(), 0) << pages.Err();
  const std::string folder = pages.folder() + "/pages";
  ASSERT_TRUE(std::filesystem::exists(folder + "/dtrain.1"));
  ASSERT_TRUE(std::filesystem::exists(folder + "/dtrain-launch.1"));
  const std::string build = std::filesystem::path(DTRAIN_PROGRAM).parent_path();
  LaunchedJob named({}, {"grep", "-rF", build, folder});
  EXPECT_EQ(named.Wait(), 1) << named.Out();
  LaunchedJob groff(
      {}, {"sh", "-c", absl::StrCat("for f in ", folder, "/*.1; do groff -man -ww -z $f; done")});
  EXPECT_EQ(groff.Wait(), 0);
  EXPECT_EQ(groff.Err(), "");
  LaunchedJob text(
      {}, {"sh", "-c", absl::StrCat("groff -man -Tascii -P-cbou ", folder, "/dtrain-launch.1")});
  EXPECT_EQ(text.Wait(), 0) << text.Err();
  EXPECT_THAT(text.Out(), AllOf(HasSubstr("--nproc-per-node"), HasSubstr("SYNOPSIS"),
                                HasSubstr("dtrain exit-codes")));
}

TEST(Dtrain, AMisspeltOptionIsToldWithTheNearest) {
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{"--verison"},
       "dtrain: unknown option --verison; did you mean --version?; see dtrain --help"},
      {{"logs", "--folow", "runs/gpt"},
       "dtrain logs: unknown option --folow; did you mean --follow?; see dtrain logs --help"},
      {{"logs", "--follw"},
       "dtrain logs: unknown option --follw; did you mean --follow?; see dtrain logs --help"},
      {{"trace", "merge", "--ot", "x", "runs/gpt"},
       "dtrain trace merge: unknown option --ot; did you mean --out?; see dtrain trace merge "
       "--help"},
      {{"env", "--prefx"},
       "dtrain env: unknown option --prefx; did you mean --prefix?; see dtrain env --help"},
      {{"topo", "--jsn"},
       "dtrain topo: unknown option --jsn; did you mean --json?; see dtrain topo --help"},
      {{"launch", "--nnode", "2", "sh"},
       "dtrain launch: unknown option --nnode; did you mean --nnodes?; see dtrain launch --help"},
      {{"logs", "--rank", "-1", "runs/gpt"},
       "dtrain logs: --rank: Value -1 not in range 0 to 1048575; see dtrain logs --help"},
      {{"finetune", "gpt2", "chats.jsonl", "--out", "tuned", "--template", "qwn"},
       "dtrain finetune: --template: qwn not in {chatml,llama3,qwen,alpaca,plain}; see dtrain "
       "finetune --help"},
      {{"finetune", "gpt2", "chats.jsonl", "--out", "tuned", "--epochs", "-1"},
       "dtrain finetune: --epochs: Value -1 is not a number above 0; see dtrain finetune --help"},
      {{"exit-codes", "75"},
       "dtrain exit-codes: argument 75 was not expected; see dtrain exit-codes --help"},
      // A value may not begin a line of its own, nor drive the terminal.
      {{"exit-codes", "7\n5"},
       "dtrain exit-codes: argument 7?5 was not expected; see dtrain exit-codes --help"},
      {{"--\x1b[2J"}, "dtrain: unknown option --?[2J; see dtrain --help"}};
  for (const auto& [arguments, message] : wrong) {
    LaunchedJob job(arguments);
    EXPECT_EQ(job.Wait(), 64) << message;
    EXPECT_EQ(job.Err(), message + "\n");
  }
}

// The output of `dtrain-config check --all`, shortened.
std::string Checked(const std::string& batch, const std::string& micro, const std::string& steps) {
  return absl::StrFormat(
      "global batch 32 = micro-batch 4 x accumulation 2 x 4 ranks\n"
      "train_batch_size  32  (file)\n"
      "{\n  \"train_batch_size\": 32,\n  \"train_micro_batch_size_per_gpu\": 4,\n"
      "  \"origins\": {\n    \"train_batch_size\": \"%s\",\n"
      "    \"train_micro_batch_size_per_gpu\": \"%s\",\n"
      "    \"gradient_accumulation_steps\": \"%s\"\n  }\n}\nidentity 1234\n",
      batch, micro, steps);
}

TEST(BatchIn, IsThatOfTheConfigurationWhereNoneFollowsFromTheRanks) {
  const auto batch = BatchIn(Checked("file", "--set", "derived"));
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->global, 32);
  EXPECT_EQ(batch->micro, 4);
  for (const std::string& output :
       {Checked("derived", "file", "file"), Checked("file", "derived", "derived"),
        Checked("file", "file", "file")}) {
    EXPECT_THAT(std::string(BatchIn(output).status().message()),
                HasSubstr("set both in the configuration, and leave gradient_accumulation_steps"));
  }
}

TEST(ConfigurationIn, IsWhatTheProgramTakesOfItsArguments) {
  EXPECT_THAT(ConfigurationIn({"--fresh", "gpt.json", "--set", "a=1", "--run-dir", "x.json",
                               "--set=b=2", "--accept-change", "y.json", "--local_rank=0"},
                              4),
              ElementsAre("gpt.json", "--world-size", "4", "--set", "a=1", "--set", "b=2"));
  EXPECT_THAT(ConfigurationIn({"--deepspeed_config", "ds", "--fresh"}, 1),
              ElementsAre("ds", "--world-size", "1"));
  EXPECT_THAT(ConfigurationIn({"-c", "true", "--fresh"}, 1), IsEmpty());
  EXPECT_THAT(ConfigurationIn({"gpt.json", "--fresh", "--set"}, 1), IsEmpty());
}

// A folder with the launcher and a dtrain-config of our own.
TEST(Dtrain, FreshMovesTheOldRunOnlyWhenTheConfigurationIsGood) {
  LaunchedJob place({"exit-codes"});
  EXPECT_EQ(place.Wait(), 0);
  const std::string& folder = place.folder();
  std::filesystem::copy_file(DTRAIN_PROGRAM, folder + "/dtrain");
  const auto write = [&folder](const std::string& name, const std::string& content) {
    ASSERT_TRUE(WriteFileAtomic(absl::StrCat(folder, "/", name), content, 0755).ok());
  };
  ASSERT_TRUE(MakeDirectories(folder + "/run").ok());
  write("run/config.json", "{}");
  write("dtrain-config",
        "#!/bin/sh\necho checked\necho \"dtrain config: $*: seed is wrong\" >&2\nexit $(cat " +
            folder + "/code)\n");
  const std::string start =
      absl::StrCat("cd ", folder, "; exec ./dtrain launch --nproc-per-node 2 --run-dir run -- ",
                   "/bin/echo trains gpt.json --set seed=x --fresh");
  write("code", "64");
  LaunchedJob refused({}, {"sh", "-c", start});
  EXPECT_EQ(refused.Wait(), 64);
  EXPECT_EQ(refused.Err(),
            "dtrain launch: check gpt.json --world-size 2 --set seed=x: seed is wrong; --fresh has "
            "moved nothing\n");
  EXPECT_TRUE(FileExists(folder + "/run/config.json"));
  write("code", "0");
  LaunchedJob good({}, {"sh", "-c", start});
  EXPECT_EQ(good.Wait(), 0) << good.Err();
  EXPECT_THAT(good.Out(), AllOf(HasSubstr("trains gpt.json"), Not(HasSubstr("checked"))));
  EXPECT_FALSE(FileExists(folder + "/run/config.json"));
  EXPECT_TRUE(FileExists(folder + "/run.old-1/config.json"));
}

// The help of every command of the launcher shows defaults, if it has options, and an example.
TEST(Dtrain, EveryHelpHasAnExample) {
  for (const char* name :
       {"train", "launch", "logs", "trace", "topo", "doctor", "env", "exit-codes"}) {
    LaunchedJob job({name, "--help"});
    EXPECT_EQ(job.Wait(), 0) << name;
    EXPECT_THAT(job.Out(), AllOf(HasSubstr("Usage: dtrain "), HasSubstr("Example"))) << name;
    const std::string text = job.Out();
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      EXPECT_LE(line.size(), 80U) << line;
    }
  }
  for (const char* name : {"merge", "torch"}) {
    LaunchedJob job({"trace", name, "--help"});
    EXPECT_EQ(job.Wait(), 0) << name;
    EXPECT_THAT(job.Out(), AllOf(HasSubstr("RUN_DIR/flight/"), HasSubstr("Example"))) << name;
  }
  LaunchedJob launch({"launch", "--help"});
  EXPECT_EQ(launch.Wait(), 0);
  EXPECT_THAT(launch.Out(), AllOf(HasSubstr("Default: 300."), HasSubstr("Default: 1."),
                                  HasSubstr("Default: SIGTERM,SIGINT,SIGHUP,SIGQUIT."),
                                  Not(HasSubstr("--standalone"))));
}

}  // namespace
}  // namespace dtrain::launcher::commands_test
