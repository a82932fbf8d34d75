// `dtrain ps`, `dtrain status` and `dtrain stop` beside running jobs.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/jobs/job_registry.h"
#include "tests/launcher/launched_job.h"

namespace dtrain::launcher::jobs_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A rank that says where it is and waits for SIGTERM, as one that trains.
constexpr char kRank[] = "trap 'echo saved; exit 143' TERM; echo up; while :; do sleep 0.02; done";

class Jobs : public ::testing::Test {
 protected:
  Jobs() : runtime_(*TempDir::Create("/tmp")) {}

  std::vector<std::string> Here() const {
    return {"env", absl::StrCat("XDG_RUNTIME_DIR=", runtime_.path())};
  }
  std::string Registry() const { return runtime_.path() + "/dtrain"; }
  std::string Says(const std::vector<std::string>& arguments, int code = 0) const {
    LaunchedJob job(arguments, Here());
    EXPECT_EQ(job.Wait(), code) << job.Err();
    return job.Out() + job.Err();
  }
  // A job of two ranks that are up.
  std::unique_ptr<LaunchedJob> Start(const std::vector<std::string>& flags = {}) const {
    std::vector<std::string> words = {"launch", "--nproc-per-node", "2", "--run-dir", "run"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), {"sh", "-c", kRank});
    auto job = std::make_unique<LaunchedJob>(words, Here());
    for (const char* log : {"run/logs/attempt-0/rank-0.out", "run/logs/attempt-0/rank-1.out"}) {
      EXPECT_TRUE(job->AwaitText(log, "up"));
    }
    return job;
  }

  TempDir runtime_;
};

TEST_F(Jobs, AreListedWhileTheyRun) {
  EXPECT_EQ(Says({"ps"}), "No job of yours runs on this host.\n");
  const auto job = Start();
  const std::string run_dir = job->folder() + "/run";
  EXPECT_THAT(Says({"ps"}), HasSubstr(run_dir));
  const auto rows = ParseJson(Says({"ps", "--json"}), "ps");
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_THAT(*rows, SizeIs(1));
  EXPECT_EQ((*rows)[0]["run_dir"], run_dir);
  EXPECT_EQ((*rows)[0]["ranks"], 2);
  EXPECT_THAT(Says({"status", run_dir}),
              AllOf(HasSubstr("running for 0:0"), HasSubstr("2 of 2 ranks on this host"),
                    HasSubstr("\n     1          -             none yet\n")));
  EXPECT_THAT(Says({"status", "elsewhere"}, 64),
              AllOf(HasSubstr("no job runs in elsewhere"), HasSubstr(run_dir)));
  job->Signal(SIGTERM);
  EXPECT_EQ(job->Wait(), 143);
  EXPECT_EQ(Says({"ps"}), "No job of yours runs on this host.\n");
  EXPECT_THAT(Says({"status"}, 64), HasSubstr("no job of yours runs on this host"));
}

TEST_F(Jobs, StopLetsTheRanksSaveWhateverSignalsTheUserHasChosen) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--signals-to-handle", "SIGUSR2"}}) {
    const auto job = Start(flags);
    EXPECT_THAT(Says({"stop", job->folder() + "/run"}),
                AllOf(HasSubstr("is told to save and stop"), HasSubstr("has ended after ")));
    EXPECT_EQ(job->Wait(), 143);
    EXPECT_THAT(job->File("run/logs/attempt-0/rank-0.out"), HasSubstr("saved"));
  }
}

TEST_F(Jobs, StopNowKillsRanksThatDoNotListen) {
  LaunchedJob job({"launch", "--run-dir", "run", "sh", "-c", "trap '' TERM; echo up; sleep 600"},
                  Here());
  ASSERT_TRUE(job.AwaitText("run/logs/attempt-0/rank-0.out", "up"));
  EXPECT_THAT(Says({"stop", "--now"}), HasSubstr("is told to end now"));
  EXPECT_EQ(job.Wait(), 75) << "nothing was saved";
  EXPECT_TRUE(job.AwaitNothingLeft());
}

TEST_F(Jobs, ASecondJobOfThisHostIsRefusedInTheSameRunDirectory) {
  const auto job = Start();
  const std::string run_dir = job->folder() + "/run";
  // A rank may be up before its event is written.
  ASSERT_TRUE(job->AwaitText("run/events.jsonl", "\"rank\":1"));
  const std::string before = job->File("run/events.jsonl");
  EXPECT_THAT(Says({"launch", "--run-dir", run_dir + "/../run/", "true"}, 75),
              AllOf(HasSubstr("a job of sh (process "), HasSubstr("already runs in run directory"),
                    HasSubstr("`dtrain stop "), HasSubstr("--run-dir of its own")));
  EXPECT_EQ(job->File("run/events.jsonl"), before);
  EXPECT_FALSE(std::filesystem::exists(run_dir + "/logs/attempt-1"));
  EXPECT_THAT(Says({"stop", run_dir}), HasSubstr("has ended after "));
  EXPECT_EQ(job->Wait(), 143);
  Says({"launch", "--run-dir", run_dir, "true"});
}

TEST_F(Jobs, TheFileOfAKilledAgentIsRemoved) {
  const auto job = Start();
  const auto jobs = RunningJobs(Registry());
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_THAT(*jobs, SizeIs(1));
  job->Signal(SIGKILL);
  job->Wait();
  EXPECT_FALSE(std::filesystem::is_empty(Registry()));
  EXPECT_EQ(Says({"ps"}), "No job of yours runs on this host.\n");
  EXPECT_TRUE(std::filesystem::is_empty(Registry()));
}

TEST_F(Jobs, AFolderOfOthersIsRefusedAndTrainingGoesOn) {
  ASSERT_TRUE(MakeDirectories(Registry(), 0755).ok());
  ASSERT_EQ(chmod(Registry().c_str(), 0777), 0);
  EXPECT_THAT(Says({"ps"}, 64), HasSubstr("must be a folder of mode 0700"));
  EXPECT_THAT(Says({"launch", "--run-dir", "run", "true"}),
              AllOf(HasSubstr("`dtrain ps` does not show this job"), HasSubstr("exit code 0")));
}

TEST(Logs, OfARestartAreFollowedToo) {
  LaunchedJob job({"launch", "--max-restarts", "1", "--run-dir", "run", "--log-dir", "outputs",
                   "--", "sh", "-c",
                   "echo attempt $DTRAIN_ATTEMPT; until [ -e go ]; do sleep 0.02; done; "
                   "[ $DTRAIN_ATTEMPT = 1 ] || exit 75"});
  ASSERT_TRUE(job.AwaitText("outputs/attempt-0/rank-0.out", "attempt 0"));
  const std::string run_dir = job.folder() + "/run";
  LaunchedJob reader({"logs", "-f", "--log-dir", job.folder() + "/outputs", run_dir});
  ASSERT_TRUE(reader.AwaitText("stdout", "[rank 0] attempt 0"));
  ASSERT_TRUE(WriteFileAtomic(job.folder() + "/go", "").ok());
  EXPECT_EQ(job.Wait(), 0) << job.Err();
  EXPECT_EQ(reader.Wait(), 0) << reader.Err();
  EXPECT_EQ(reader.Out(), "[rank 0] attempt 0\n[rank 0] attempt 1\n");
  LaunchedJob lost({"logs", run_dir});
  EXPECT_EQ(lost.Wait(), 64);
  EXPECT_THAT(lost.Err(), AllOf(HasSubstr("no logs in " + run_dir), HasSubstr("--log-dir")));
}

// What a rank writes before its file is begun anew is in FILE.1.
TEST(Outputs, OfARankAreKeptWithinTheLimit) {
  const std::string out = "run/logs/attempt-0/rank-1.out";
  const std::string script = absl::StrCat("[ $RANK = 0 ] && exit; printf %02000d 0; while [ -s ",
                                          out, " ]; do sleep 0.05; done; echo end");
  LaunchedJob job({"launch", "--nproc-per-node", "2", "--run-dir", "run", "--", "sh", "-c", script},
                  {"env", "DTRAIN_LOG_BYTES_MAX=1000"});
  EXPECT_EQ(job.Wait(), 0) << job.Err();
  EXPECT_EQ(job.File(out), "end\n");
  EXPECT_EQ(job.File(out + ".1"), std::string(1000, '0'));
  LaunchedJob refused({"launch", "--run-dir", "run", "true"}, {"env", "DTRAIN_LOG_BYTES_MAX=many"});
  EXPECT_EQ(refused.Wait(), 64);
  EXPECT_THAT(refused.Err(), HasSubstr("DTRAIN_LOG_BYTES_MAX is \"many\""));
}

TEST(ProcessStart, KnowsThisProcessAndNoOther) {
  EXPECT_GT(ProcessStart(getpid()), 0);
  EXPECT_EQ(ProcessStart(0x3fffffff), 0);
}

TEST(JobIn, IsTheFirstNodeOfTheJobInThatDirectory) {
  std::vector<JobFacts> jobs(4);
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].run_dir = i == 3 ? "/runs/b" : "/runs/a";
    jobs[i].node_rank = 3 - static_cast<int>(i);
  }
  ASSERT_NE(JobIn("/runs/./a", jobs), nullptr);
  EXPECT_EQ(JobIn("/runs/./a", jobs)->node_rank, 1);
  EXPECT_EQ(JobIn("/runs/c", jobs), nullptr);
}

TEST(RunningJobs, SkipsWhatIsNoJob) {
  const auto folder = *TempDir::Create("/tmp");
  ASSERT_TRUE(WriteFileAtomic(folder.path() + "/1.json", "{\"pid\": 1}").ok());
  ASSERT_TRUE(WriteFileAtomic(folder.path() + "/2.json", "nonsense").ok());
  const auto jobs = RunningJobs(folder.path());
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  EXPECT_THAT(*jobs, IsEmpty());
}

}  // namespace
}  // namespace dtrain::launcher::jobs_test
