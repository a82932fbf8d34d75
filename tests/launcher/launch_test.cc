// `dtrain launch` on one host, seen from outside, with shell scripts as ranks.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/launcher/launched_job.h"
#include "tests/testing/shortest.h"

namespace dtrain::launcher::launch_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// For ends that come by themselves: what takes longer on a busy machine hangs. The second that
// FAILURES.md gives is in AKilledRankEndsTheJobWithinASecondAndLeavesNothing.
constexpr absl::Duration kSoon = absl::Seconds(60);

std::vector<std::string> Two(const std::string& script) {
  return {"launch", "--nproc-per-node", "2", "--run-dir", "run", "--", "sh", "-c", script};
}

// Prints its pid, then waits for ever, with a child process that would outlive a careless kill.
constexpr char kForever[] = "sleep 1000 & echo pid $$; wait";

int PidIn(const std::string& text) {
  int pid = 0;
  EXPECT_EQ(sscanf(text.c_str(), "pid %d", &pid), 1) << text;
  return pid;
}

std::vector<Json> Events(const LaunchedJob& job) {
  std::vector<Json> events;
  for (const absl::string_view line :
       absl::StrSplit(job.File("run/events.jsonl"), '\n', absl::SkipEmpty())) {
    events.push_back(*ParseJson(line, "events"));
  }
  return events;
}

TEST(Launch, RunsAllRanksKeepsTheirLogsAndShowsRankZero) {
  LaunchedJob job(Two("echo out $RANK of $WORLD_SIZE; echo err $RANK >&2"));
  EXPECT_EQ(job.Wait(), 0) << job.Err();
  EXPECT_EQ(job.File("run/logs/attempt-0/rank-0.out"), "out 0 of 2\n");
  EXPECT_EQ(job.File("run/logs/attempt-0/rank-1.out"), "out 1 of 2\n");
  EXPECT_EQ(job.File("run/logs/attempt-0/rank-1.err"), "err 1\n");
  EXPECT_EQ(job.Out(), "out 0 of 2\n");
  const std::vector<Json> events = Events(job);
  ASSERT_EQ(events.size(), 6U);  // start, 2 spawn, 2 end, finish.
  EXPECT_EQ(events.front()["event"], "start");
  EXPECT_EQ(events.back()["event"], "finish");
  EXPECT_EQ(events.back()["exit_code"], 0);
  EXPECT_TRUE(job.AwaitNothingLeft());
}

TEST(Launch, TellsRanksWhoTheyAreAndGivesTheTokenByDescriptorAlone) {
  LaunchedJob job(Two("wc -c <&3; env; tr '\\0' ' ' </proc/$PPID/cmdline"));
  EXPECT_EQ(job.Wait(), 0);
  const std::string out = job.File("run/logs/attempt-0/rank-1.out");
  EXPECT_THAT(out, HasSubstr("32\n"));
  for (const char* text : {"RANK=1\n", "LOCAL_RANK=1\n", "LOCAL_WORLD_SIZE=2\n", "GROUP_RANK=0\n",
                           "DTRAIN_ATTEMPT=0\n", "DTRAIN_TOKEN_FD=3\n", "DTRAIN_STORE=127.0.0.1:",
                           "DTRAIN_HOST_ADDRESS=127.0.0.1\n", "MASTER_ADDR=127.0.0.1\n"}) {
    EXPECT_THAT(out, HasSubstr(text));
  }
  EXPECT_THAT(out, HasSubstr(absl::StrCat("DTRAIN_RUN_DIR=", job.folder(), "/run\n")));
}

TEST(Launch, EndsWithTheFailingRanksCodeAndShowsItsStderr) {
  LaunchedJob job(Two("if [ $RANK = 1 ]; then echo oh no >&2; exit 17; fi; sleep 1000"));
  EXPECT_EQ(job.Wait(kSoon), 17);
  EXPECT_THAT(job.Err(), AllOf(HasSubstr("rank 1 ended with exit code 17"), HasSubstr("| oh no"),
                               HasSubstr("run/logs/attempt-0/rank-1.err")));
  EXPECT_TRUE(job.AwaitNothingLeft());
}

TEST(Launch, NamesTheKilledRankAndNotTheVictimThatEndsFirst) {
  // Rank 0 ends with 75, like a rank that lost its peer; its peer is killed only after that.
  LaunchedJob job(
      Two("trap '' TERM; if [ $RANK = 0 ]; then echo $$ >p2; mv p2 p; "
          "until [ -e r ]; do :; done; exit 75; fi; "
          "until [ -e p ]; do :; done; read p <p; : >r; while [ -e /proc/$p/fd/1 ]; do :; done; "
          "kill -KILL $$"));
  EXPECT_EQ(job.Wait(kSoon), 137);
  EXPECT_THAT(job.Err(), HasSubstr("rank 1 killed by signal 9 (SIGKILL)"));
}

// How long a job lasts whose second rank is killed.
absl::Duration TimeToEndAfterAKill() {
  LaunchedJob job(Two(kForever));
  EXPECT_TRUE(job.AwaitText("run/logs/attempt-0/rank-1.out", "pid"));
  const int pid = PidIn(job.File("run/logs/attempt-0/rank-1.out"));
  const absl::Time killed = absl::Now();
  EXPECT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_EQ(job.Wait(kSoon), 137);
  const absl::Duration lasted = absl::Now() - killed;
  EXPECT_THAT(job.Err(), AllOf(HasSubstr("rank 1 killed by signal 9 (SIGKILL)"),
                               HasSubstr(absl::StrCat("pid ", pid))));
  EXPECT_TRUE(job.AwaitNothingLeft());
  return lasted;
}

TEST(Launch, AKilledRankEndsTheJobWithinASecondAndLeavesNothing) {
  const absl::Duration shortest = testing::ShortestOf(10, absl::Seconds(1), TimeToEndAfterAKill);
  RecordProperty("milliseconds", static_cast<int>(absl::ToInt64Milliseconds(shortest)));
  EXPECT_LT(shortest, absl::Seconds(1));
}

TEST(Launch, KillsRanksThatIgnoreSigtermAfterAFailure) {
  LaunchedJob job(
      Two("trap '' TERM; if [ $RANK = 1 ]; then exit 3; fi; while :; do sleep 1; done"));
  EXPECT_EQ(job.Wait(kSoon), 3);
  EXPECT_TRUE(job.AwaitNothingLeft());
}

TEST(Launch, LeavesNoOrphanWhenTheLauncherItselfIsKilled) {
  LaunchedJob job(Two(kForever));
  ASSERT_TRUE(job.AwaitText("run/logs/attempt-0/rank-0.out", "pid"));
  ASSERT_TRUE(job.AwaitText("run/logs/attempt-0/rank-1.out", "pid"));
  EXPECT_TRUE(job.AwaitRanks(4)) << "two shells and their children";
  job.Signal(SIGKILL);
  EXPECT_EQ(job.Wait(), 137);
  EXPECT_TRUE(job.AwaitNothingLeft());
}

TEST(Launch, RemovesWhatARankLeftInTheBackground) {
  LaunchedJob job(Two("sleep 1000 & setsid sleep 1000 & exit 0"));
  EXPECT_EQ(job.Wait(kSoon), 0);
  EXPECT_TRUE(job.AwaitNothingLeft());
}

// A rank that saves on SIGTERM and SIGINT, as programs of dtrain do; counts the signals it gets.
constexpr char kSaves[] =
    "trap 'echo got TERM; code=143' TERM; trap 'echo got INT; code=130' INT; echo ready; "
    "while [ -z \"$code\" ]; do sleep 0.05; done; sleep 0.2; echo saved; exit $code";

TEST(Launch, PassesSigtermOnceAndLetsRanksSave) {
  LaunchedJob job(Two(kSaves));
  for (const char* log : {"run/logs/attempt-0/rank-0.out", "run/logs/attempt-0/rank-1.out"}) {
    ASSERT_TRUE(job.AwaitText(log, "ready"));
  }
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(), 143) << job.Err();
  EXPECT_EQ(job.File("run/logs/attempt-0/rank-1.out"), "ready\ngot TERM\nsaved\n");
  EXPECT_THAT(job.Err(), HasSubstr("SIGTERM received"));
  int told = 0;
  for (const Json& event : Events(job)) {
    told += event["event"] == "signal" && event["signal"] == "SIGTERM" ? 1 : 0;
  }
  EXPECT_EQ(told, 1) << job.File("run/events.jsonl");
}

TEST(Launch, StopGraceIsTheTimeThatRanksHaveToSave) {
  constexpr char kNeverSaves[] =
      "trap 'echo got TERM' TERM; echo ready; while :; do sleep 0.05; done";
  LaunchedJob job({"launch", "--nproc-per-node", "2", "--stop-grace", "1.5", "--run-dir", "run",
                   "--", "sh", "-c", kNeverSaves});
  for (const char* log : {"run/logs/attempt-0/rank-0.out", "run/logs/attempt-0/rank-1.out"}) {
    ASSERT_TRUE(job.AwaitText(log, "ready"));
  }
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(kSoon), 75) << job.Err();  // It is not known whether anything was saved.
  EXPECT_THAT(job.Err(), AllOf(HasSubstr("may take up to 1.5s"),
                               HasSubstr("the grace period of 1.5s has passed; stopping 2 ranks")));
  EXPECT_THAT(job.File("run/logs/attempt-0/rank-1.out"), HasSubstr("got TERM"));
  EXPECT_TRUE(job.AwaitNothingLeft());
}

TEST(Launch, PassesSighupAndSigquitOnAsSigterm) {
  std::signal(SIGHUP, SIG_DFL);  // The default, even if this test was started with nohup.
  for (const int signal : {SIGHUP, SIGQUIT}) {
    LaunchedJob job(Two(kSaves));
    for (const char* log : {"run/logs/attempt-0/rank-0.out", "run/logs/attempt-0/rank-1.out"}) {
      ASSERT_TRUE(job.AwaitText(log, "ready"));
    }
    job.Signal(signal);
    EXPECT_EQ(job.Wait(), 143) << job.Err();
    EXPECT_EQ(job.File("run/logs/attempt-0/rank-1.out"), "ready\ngot TERM\nsaved\n");
  }
}

TEST(Launch, UnderNohupAHangupEndsNeitherTheJobNorARank) {
  std::signal(SIGHUP, SIG_IGN);
  LaunchedJob job(
      Two("kill -HUP $$; echo ready; while [ ! -e go ]; do sleep 0.05; done; echo done"));
  std::signal(SIGHUP, SIG_DFL);
  ASSERT_TRUE(job.AwaitText("run/logs/attempt-0/rank-0.out", "ready"));
  ASSERT_TRUE(job.AwaitText("run/logs/attempt-0/rank-1.out", "ready"));
  job.Signal(SIGHUP);
  std::ofstream(job.folder() + "/go").close();
  EXPECT_EQ(job.Wait(kSoon), 0) << job.Err();
  EXPECT_EQ(job.File("run/logs/attempt-0/rank-1.out"), "ready\ndone\n");
}

TEST(Launch, CtrlCEndsWith130) {
  LaunchedJob job(Two(kSaves));
  ASSERT_TRUE(job.AwaitText("run/logs/attempt-0/rank-0.out", "ready"));
  ASSERT_TRUE(job.AwaitText("run/logs/attempt-0/rank-1.out", "ready"));
  job.Signal(SIGINT);
  EXPECT_EQ(job.Wait(), 130) << job.Err();
  EXPECT_EQ(job.File("run/logs/attempt-0/rank-0.out"), "ready\ngot INT\nsaved\n");
}

TEST(Launch, ASecondCtrlCStopsAtOnce) {
  LaunchedJob job(Two("trap 'echo got INT' INT; echo ready; while :; do sleep 0.05; done"));
  ASSERT_TRUE(job.AwaitText("run/logs/attempt-0/rank-0.out", "ready"));
  ASSERT_TRUE(job.AwaitText("run/logs/attempt-0/rank-1.out", "ready"));
  job.Signal(SIGINT);
  ASSERT_TRUE(job.AwaitText("run/logs/attempt-0/rank-0.out", "got INT"));
  job.Signal(SIGINT);
  EXPECT_EQ(job.Wait(kSoon), 130) << job.Err();
  EXPECT_TRUE(job.AwaitNothingLeft());
}

TEST(Launch, NamesARankThatLeftEarlyWhileOthersGoOn) {
  LaunchedJob job({"launch", "--nproc-per-node", "2", "--exit-barrier", "0.2", "--run-dir", "run",
                   "sh", "-c", "[ $RANK = 1 ] || sleep 1000"});
  EXPECT_EQ(job.Wait(kSoon), 75);
  EXPECT_THAT(job.Err(), HasSubstr("rank 1 ended with exit code 0, but rank 0 still runs"));
}

TEST(Launch, RestartsWithTheNextAttemptNumber) {
  LaunchedJob job({"launch", "--nproc-per-node", "2", "--max-restarts", "2", "--run-dir", "run",
                   "sh", "-c",
                   "echo attempt $DTRAIN_ATTEMPT; [ $DTRAIN_ATTEMPT = 1 ] || exit 75; exit 0"});
  EXPECT_EQ(job.Wait(), 0) << job.Err();
  EXPECT_EQ(job.File("run/logs/attempt-1/rank-1.out"), "attempt 1\n");
  EXPECT_THAT(job.Err(), HasSubstr("restart 1 of 2"));
}

// A run directory for several launches.
class SeveralLaunches : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_.path()); }
  std::vector<std::string> Say(const std::string& word,
                               std::vector<std::string> options = {}) const {
    std::vector<std::string> words = {"launch",
                                      "--nproc-per-node",
                                      "1",
                                      "--run-dir",
                                      run_,
                                      "--",
                                      "sh",
                                      "-c",
                                      "echo {} >$DTRAIN_RUN_DIR/config.json; echo " + word,
                                      "name"};
    words.insert(words.end(), options.begin(), options.end());
    return words;
  }
  static void Run(const std::vector<std::string>& words) {
    LaunchedJob job(words);
    EXPECT_EQ(job.Wait(), 0) << job.Err();
  }
  std::string File(const std::string& path) const { return ReadFile(run_ + path).value_or("none"); }
  TempDir folder_ = *TempDir::Create("/tmp");
  const std::string run_ = folder_.path() + "/run";
};

TEST_F(SeveralLaunches, EachHasLogsOfItsOwnAndTheNewestAreShown) {
  Run(Say("first"));
  Run(Say("second"));
  EXPECT_EQ(File("/logs/attempt-0/rank-0.out"), "first\n");
  EXPECT_EQ(File("/logs/attempt-1/rank-0.out"), "second\n");
  LaunchedJob reader({"logs", run_});
  EXPECT_EQ(reader.Wait(), 0) << reader.Err();
  EXPECT_THAT(reader.Out(), AllOf(HasSubstr("second"), Not(HasSubstr("first"))));
  LaunchedJob wrong({"logs", "--rank", "9", run_});
  EXPECT_EQ(wrong.Wait(), 64);
  EXPECT_THAT(wrong.Err(),
              HasSubstr("attempt-1 has no output of rank 9; it has that of ranks from 0 to 0"));
}

TEST_F(SeveralLaunches, FreshMovesTheOldRunWithItsLogsAndTheNewOneHasItsOwn) {
  Run(Say("first"));
  LaunchedJob second(Say("second", {"--fresh"}));
  EXPECT_EQ(second.Wait(), 0) << second.Err();
  EXPECT_THAT(second.Err(), HasSubstr("moved the old run from " + run_ + " to " + run_ + ".old-1"));
  EXPECT_EQ(File("/logs/attempt-0/rank-0.out"), "second\n");
  EXPECT_EQ(File(".old-1/logs/attempt-0/rank-0.out"), "first\n");
  EXPECT_THAT(File("/events.jsonl"), HasSubstr("finish"));
}

TEST_F(SeveralLaunches, FreshMovesOnceAndNotBeforeEachRestart) {
  Run(Say("first"));
  std::vector<std::string> words = Say("again; [ $DTRAIN_ATTEMPT = 1 ] || exit 75", {"--fresh"});
  words.insert(words.begin() + 1, {"--max-restarts", "1"});
  Run(words);
  EXPECT_EQ(File("/logs/attempt-1/rank-0.out"), "again\n");
  EXPECT_FALSE(FileExists(run_ + ".old-2"));
  EXPECT_TRUE(FileExists(run_ + "/fresh-start")) << "no rank has said that it began";
}

TEST(Launch, ABugIsRestartedOnceHoweverManyRestartsAreAllowed) {
  LaunchedJob job({"launch", "--nproc-per-node", "1", "--max-restarts", "5", "--run-dir", "run",
                   "sh", "-c", "exit 70"});
  EXPECT_EQ(job.Wait(kSoon), 70) << job.Err();
  EXPECT_THAT(job.Err(), AllOf(HasSubstr("restart 1 of 5"), Not(HasSubstr("restart 2 of 5")),
                               HasSubstr("no restart: exit code 70 is restarted only once")));
}

// The rank ends with 75 because it could not save in time. After a stop signal the job is not
// started again.
TEST(Launch, AfterAStopSignalNothingIsStartedAgain) {
  LaunchedJob job({"launch", "--nproc-per-node", "1", "--max-restarts", "5", "--run-dir", "run",
                   "sh", "-c", "trap 'exit 75' TERM; echo ready; while :; do sleep 0.05; done"});
  ASSERT_TRUE(job.AwaitText("run/logs/attempt-0/rank-0.out", "ready"));
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(kSoon), 75) << job.Err();
  EXPECT_FALSE(std::filesystem::exists(job.folder() + "/run/logs/attempt-1"));
}

// A job that ends with 75 after it has written `record`, twice.
std::vector<std::string> FailsTwiceAfter(const std::string& record) {
  return {"launch",
          "--nproc-per-node",
          "1",
          "--max-restarts",
          "1",
          "--run-dir",
          "run",
          "--",
          "sh",
          "-c",
          absl::StrCat("mkdir -p run/metrics; echo '", record,
                       "' >>run/metrics/rank-0.jsonl; exit 75")};
}

// The wait before a restart is 0 after progress and 1 s without.
TEST(Launch, OnlyACommittedCheckpointIsProgress) {
  LaunchedJob saves(FailsTwiceAfter(R"({"v":1,"kind":"ckpt","step":1,"durable":true,"m":{}})"));
  LaunchedJob restores(
      FailsTwiceAfter(R"({"v":1,"kind":"ckpt","step":100,"restored":100,"m":{}})"));
  LaunchedJob cannot_save(
      FailsTwiceAfter(R"({"v":1,"kind":"ckpt","step":1,"durable":false,"error":"x","m":{}})"));
  EXPECT_EQ(saves.Wait(), 75) << saves.Err();
  EXPECT_EQ(restores.Wait(), 75) << restores.Err();
  EXPECT_EQ(cannot_save.Wait(), 75) << cannot_save.Err();
  EXPECT_THAT(saves.Err(), HasSubstr("restart 1 of 1 in 0\n"));
  EXPECT_THAT(restores.Err(), HasSubstr("restart 1 of 1 in 1s\n"));
  EXPECT_THAT(cannot_save.Err(), HasSubstr("restart 1 of 1 in 1s\n"));
}

TEST(Launch, ShowsTheMetricsStreamAndWritesTensorBoardFiles) {
  constexpr char kScript[] =
      "[ $RANK = 0 ] || exit 0; mkdir -p $DTRAIN_RUN_DIR/metrics; exec "
      ">$DTRAIN_RUN_DIR/metrics/rank-0.jsonl; "
      "echo '{\"v\":1,\"kind\":\"config\",\"m\":{\"train_steps\":8}}'; "
      "echo '{\"v\":1,\"ts\":1.5,\"kind\":\"step\",\"step\":4,\"m\":{\"train/loss\":2.5}}'; "
      "echo '{\"v\":1,\"ts\":2.5,\"kind\":\"eval\",\"step\":4,\"m\":{\"eval/loss\":2.25}}'";
  LaunchedJob job(Two(kScript));
  EXPECT_EQ(job.Wait(), 0) << job.Err();
  EXPECT_THAT(job.Out(),
              AllOf(HasSubstr("step 4/8  loss 2.5000"), HasSubstr("step 4  eval/loss 2.2500")));
  LaunchedJob reader({"logs", absl::StrCat(job.folder(), "/run")});
  EXPECT_EQ(reader.Wait(), 0) << reader.Err();
  EXPECT_THAT(reader.Out(), HasSubstr("step 4  eval/loss 2.2500"));
  EXPECT_THAT(Events(job).back()["event"], "finish");
}

struct BadCase {
  std::vector<std::string> arguments;
  std::string message;
};

TEST(Launch, BadInputIsOneLineAndExitCode64) {
  const std::vector<BadCase> cases = {
      {{"launch", "--nproc-per-node", "0", "sh"}, "--nproc-per-node is \"0\""},
      {{"launch", "no-such-program"}, "program no-such-program not found in PATH"},
      {{"launch", "/etc/passwd"}, "not executable"},
      {{"launch", "--nproc", "2", "sh"}, "unknown option --nproc"},
      {{"launch", "--run-dir", "/dev/null/x", "sh"}, "run directory /dev/null/x"},
      {{"launch", "--token-file", "/etc/passwd", "sh"}, "/etc/passwd"},
      {{"launch", "--reserve", "sh"}, "--reserve needs --max-restarts or --nnodes MIN:MAX"},
      {{"lunch"}, "did you mean launch? There are: train, launch, finetune, "},
      {{"--frobnicate"}, "unknown option --frobnicate"},
      {{"trace", "merg", "x"}, "did you mean merge? There are: merge, torch"},
      {{"trace"}, "no command given; there are: merge, torch"},
      {{"logs", "/nowhere"}, "no logs in /nowhere"},
  };
  for (const BadCase& bad : cases) {
    LaunchedJob job(bad.arguments);
    EXPECT_EQ(job.Wait(), 64) << bad.message;
    EXPECT_THAT(job.Err(), HasSubstr(bad.message));
    const std::string said = job.Err();
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
    EXPECT_TRUE(job.AwaitNothingLeft());
  }
}

TEST(Launch, AScriptWithoutAnInterpreterLineIsNamed) {
  LaunchedJob job({"launch", "--run-dir", "run", "sh", "-c", "true"});
  EXPECT_EQ(job.Wait(), 0);
  const std::string script = job.folder() + "/script";
  ASSERT_TRUE(WriteFileAtomic(script, "echo hi\n", 0755).ok());
  LaunchedJob broken({"launch", "--run-dir", "run", script});
  EXPECT_EQ(broken.Wait(kSoon), 64);
  EXPECT_THAT(broken.Err(), AllOf(HasSubstr("cannot execute"), HasSubstr("#! line")));
}

// A rank that writes the records of a run of 25 steps, with a metric of its own.
constexpr char kRecords[] =
    R"([ $RANK = 0 ] || exit 0; mkdir -p run/metrics; exec >run/metrics/rank-0.jsonl
say() { echo "{\"v\":1,\"kind\":\"$1\",\"step\":$2,$3}"; }
say config 0 '"m":{},"train_steps":25,"interval":10,"columns":["loss","rate","own/score"]'
say event 0 '"name":"banner","title":"dtrain 0.1.0","rows":[["steps","25"]],"m":{}'
i=1; while [ $i -le 25 ]; do
say step $i '"m":{"own/score":'$i'}'; say step $i '"m":{"train/loss":'$i',"perf/images_per_s":50}'
i=$((i+1)); done
say ckpt 25 '"path":"run/checkpoints/a","m":{"ckpt/bytes":61000000,"time/checkpoint_s":0.42}')";

TEST(Launch, ShowsTheRecordsOfARunAsItsConsole) {
  LaunchedJob job(Two(kRecords));
  EXPECT_EQ(job.Wait(), 0) << job.Err();
  EXPECT_EQ(job.Out(),
            "dtrain 0.1.0\n  steps  25\n  logs   run/logs\n"
            "step 1/25  loss 1.0000  50.0 images/s  own/score 1.0000\n"
            "step 10/25  loss 10.0000  50.0 images/s  own/score 10.0000\n"
            "step 20/25  loss 20.0000  50.0 images/s  own/score 20.0000\n"
            "step 25/25  loss 25.0000  50.0 images/s  own/score 25.0000\n"
            "saved step 25 in 0.4 s (61 MB) to run/checkpoints/a\n");
  EXPECT_THAT(job.Err(), Not(HasSubstr("2 ranks of")));  // The banner is printed only once.
}

// The logs command shows the columns of the run's console, but for every step, and also if the
// requested lines begin late.
TEST(Launch, LogsShowTheColumnsThatTheConfigurationChose) {
  LaunchedJob job(Two(kRecords));
  EXPECT_EQ(job.Wait(), 0) << job.Err();
  const std::string run = job.folder() + "/run";
  LaunchedJob all({"logs", "-n", "1000", run});
  EXPECT_EQ(all.Wait(), 0) << all.Err();
  EXPECT_THAT(all.Out(),
              AllOf(HasSubstr("step 1/25  loss 1.0000  50.0 images/s  own/score 1.0000\n"),
                    HasSubstr("step 2/25  loss 2.0000  50.0 images/s  own/score 2.0000\n")));
  ASSERT_TRUE(WriteFileAtomic(run + "/config.json",
                              R"({"train_steps": 25, "metrics": {"console": ["own/score"]}})")
                  .ok());
  LaunchedJob tail({"logs", "-n", "3", run});
  EXPECT_EQ(tail.Wait(), 0) << tail.Err();
  EXPECT_EQ(tail.Out(),
            "step 25/25  own/score 25.0000\nsaved step 25 in 0.4 s (61 MB) to "
            "run/checkpoints/a\n");
}

TEST(Launch, QuietShowsErrorsAndWhatTeeChooses) {
  constexpr char kSays[] = "echo out $RANK; echo err $RANK >&2; ";
  LaunchedJob job({"launch", "-q", "--nproc-per-node", "2", "--run-dir", "run", "--", "sh", "-c",
                   absl::StrCat(kSays, kRecords)});
  EXPECT_EQ(job.Wait(), 0) << job.Err();
  EXPECT_EQ(job.Out(), "");
  EXPECT_THAT(job.Err(), AllOf(HasSubstr("err 0\n"), Not(HasSubstr("err 1"))));
  EXPECT_TRUE(std::filesystem::exists(job.folder() + "/run/report/tensorboard"));
  LaunchedJob teed({"launch", "-q", "--nproc-per-node", "2", "--tee", "1", "--run-dir", "run", "--",
                    "sh", "-c", kSays});
  EXPECT_EQ(teed.Wait(), 0) << teed.Err();
  EXPECT_THAT(teed.Out(), AllOf(HasSubstr("[rank 0] out 0\n"), HasSubstr("[rank 1] out 1\n")));
}

TEST(Launch, AFilterShowsTheRanksThatItNamesAndNoOther) {
  LaunchedJob job({"launch", "--nproc-per-node", "3", "--tee", "3", "--local-ranks-filter", "1,2",
                   "--run-dir", "run", "--", "sh", "-c", "echo out $RANK; echo err $RANK >&2"});
  EXPECT_EQ(job.Wait(), 0) << job.Err();
  EXPECT_THAT(job.Out(), AllOf(HasSubstr("[rank 1] out 1\n"), HasSubstr("[rank 2] out 2\n"),
                               Not(HasSubstr("out 0"))));
  EXPECT_THAT(job.Err(),
              AllOf(HasSubstr("err 1\n"), HasSubstr("err 2\n"), Not(HasSubstr("err 0"))));
  EXPECT_EQ(job.File("run/logs/attempt-0/rank-0.out"), "out 0\n") << "its log is kept";
}

TEST(Dtrain, PrintsVersionHelpAndTables) {
  for (const auto& [arguments, text] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--version"}, "dtrain "},
           {{"--help"}, "launch"},
           {{"help", "launch"}, "--nproc-per-node"},
           {{"exit-codes"}, "75"},
           {{"env"}, "launcher     alone"}}) {
    LaunchedJob job(arguments);
    EXPECT_EQ(job.Wait(), 0);
    EXPECT_THAT(job.Out(), HasSubstr(text));
  }
}

}  // namespace
}  // namespace dtrain::launcher::launch_test
