// What commands `dtrain` has, how it describes them and what it says to a misspelt one.
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/commands/catalog.h"
#include "tests/launcher/launched_job.h"

namespace dtrain::launcher::commands_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
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
       "logs, "
       "checkpoint, trace, doctor, topo, env, exit-codes, bench\n"}};
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

// A folder with the launcher, a LibTorch in name and programs of our own.
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

// Every command of the launcher's own: defaults where it has options, and an example.
TEST(Dtrain, EveryHelpHasAnExample) {
  for (const char* name :
       {"train", "launch", "logs", "trace", "topo", "doctor", "env", "exit-codes"}) {
    LaunchedJob job({name, "--help"});
    EXPECT_EQ(job.Wait(), 0) << name;
    EXPECT_THAT(job.Out(), AllOf(HasSubstr("Usage: dtrain "), HasSubstr("Example"))) << name;
    const std::string text = job.Out();
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      EXPECT_LE(line.size(), 100U) << line;
    }
  }
  LaunchedJob launch({"launch", "--help"});
  EXPECT_EQ(launch.Wait(), 0);
  EXPECT_THAT(launch.Out(), AllOf(HasSubstr("Default: 300."), HasSubstr("Default: 1."),
                                  HasSubstr("Default: SIGTERM,SIGINT,SIGHUP,SIGQUIT."),
                                  Not(HasSubstr("--standalone"))));
}

}  // namespace
}  // namespace dtrain::launcher::commands_test
