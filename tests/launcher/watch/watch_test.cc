// `dtrain launch` finds ranks that hang, crash or lag, with real processes as ranks: the one that
// is at fault is named, the attempt ends, and a report is left.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/launcher/launched_job.h"

namespace dtrain::launcher::watch_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> Launch(const std::string& mode, int restarts = 0) {
  return {"launch",
          "--nproc-per-node",
          "2",
          "--max-restarts",
          absl::StrCat(restarts),
          "--run-dir",
          "run",
          "--",
          DTRAIN_SCRIPTED_RANK,
          mode};
}

Json Report(const LaunchedJob& job, const std::string& path = "run/report.json") {
  return ParseJson(job.File(path), path).value_or(Json::object());
}

TEST(Watch, ARankThatSleepsInItsDataSourceIsNamedAndTheJobStartsAgain) {
  LaunchedJob job(Launch("data", /*restarts=*/1));
  EXPECT_EQ(job.Wait(), 0) << job.Err();
  EXPECT_THAT(job.Err(), AllOf(HasSubstr("the job hangs: rank 1 (host "),
                               HasSubstr("has not entered collective 31 of group \"world\""),
                               HasSubstr("in which rank 0 waits: it waits for its data source"),
                               HasSubstr("restart 1 of 1"), HasSubstr("report.json")));
  const Json report = Report(job, "run/logs/attempt-0/report.json");
  EXPECT_EQ(report["kind"], "hang") << job.Err();
  EXPECT_EQ(report["exit_code"], 75);
  EXPECT_EQ(report["first"]["rank"], 1);
  EXPECT_EQ(report["first"]["hang"], "never_entered");
  EXPECT_EQ(report["first"]["phase"], "data");
  EXPECT_FALSE(report["ranks"][1]["threads"].empty());
  EXPECT_FALSE(report["ranks"][1]["stack"].empty()) << "it was asked for";
  EXPECT_THAT(job.File("run/events.jsonl"), HasSubstr("\"event\":\"hang\""));
  EXPECT_TRUE(job.AwaitNothingLeft());
}

TEST(Watch, ADataSourceHasTheTimeThatTheConfigurationGivesIt) {
  LaunchedJob job(Launch("slow-data"));
  EXPECT_EQ(job.Wait(), 75) << job.Err();
  EXPECT_THAT(job.Err(), AllOf(HasSubstr("the job hangs: rank 1 (host "),
                               HasSubstr("in which rank 0 waits: it waits for its data source"),
                               HasSubstr("without progress, limit 2.0 s")));
  EXPECT_EQ(Report(job)["first"]["hang"], "never_entered");
}

TEST(Watch, AStoppedRankIsNamed) {
  LaunchedJob job(Launch("stop"));
  EXPECT_EQ(job.Wait(), 75) << job.Err();
  EXPECT_THAT(job.Err(), AllOf(HasSubstr("the job hangs: rank 1 (host "),
                               HasSubstr("a signal has stopped its process")));
  EXPECT_EQ(Report(job)["first"]["rank"], 1);
  EXPECT_TRUE(job.AwaitNothingLeft());
}

TEST(Watch, RanksInDifferentCollectivesAreAMismatch) {
  LaunchedJob job(Launch("mismatch"));
  EXPECT_EQ(job.Wait(), 75) << job.Err();
  EXPECT_THAT(job.Err(), AllOf(HasSubstr("is in another collective than the others"),
                               HasSubstr("broadcast int32 8 bytes from rank 0"),
                               HasSubstr("all_reduce \"bucket 0\"")));
  EXPECT_EQ(Report(job)["first"]["hang"], "mismatch");
}

TEST(Watch, RanksThatAreAllInTheSameCollectiveAreStuckTogether) {
  LaunchedJob job(Launch("all"));
  EXPECT_EQ(job.Wait(), 75) << job.Err();
  EXPECT_THAT(job.Err(), HasSubstr("all 2 ranks are stuck in collective 31"));
  EXPECT_EQ(Report(job)["first"]["hang"], "all_stuck");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // They end a crash otherwise.
TEST(Watch, ACrashLeavesItsStackInTheReport) {
  LaunchedJob job(Launch("crash"));
  EXPECT_EQ(job.Wait(), 128 + SIGSEGV) << job.Err();
  const Json report = Report(job);
  EXPECT_EQ(report["kind"], "signal") << job.Err();
  EXPECT_EQ(report["first"]["signal"], "SIGSEGV");
  EXPECT_EQ(report["first"]["rank"], 1);
  EXPECT_EQ(report["first"]["step"], 30);
  EXPECT_EQ(report["ranks"][1]["progress"][0]["left"], 30);
  std::vector<std::string> roles;
  for (const Json& end : report["ends"]) {
    roles.push_back(end["role"]);
  }
  EXPECT_THAT(roles, ::testing::ElementsAre("first", "stopped"));
  EXPECT_FALSE(report["ranks"][1]["stack"].empty());
  EXPECT_THAT(job.File("run/report.txt"), HasSubstr("rank 1 killed by signal 11 (SIGSEGV)"));
}
#endif

TEST(Watch, ASlowRankIsNamedOnceAndTheJobGoesOn) {
  LaunchedJob job(Launch("slow"));
  EXPECT_EQ(job.Wait(), 0) << job.Err();
  EXPECT_THAT(job.Err(), HasSubstr("rank 1 is a straggler"));
  EXPECT_THAT(job.Err(), Not(HasSubstr("rank 0 is a straggler")));
  EXPECT_THAT(job.File("run/events.jsonl"), HasSubstr("\"event\":\"straggler\""));
  EXPECT_FALSE(FileExists(job.folder() + "/run/report.json"));
}

// Programs that keep all CPUs busy, until their end.
class Stress {
 public:
  explicit Stress(int programs) {
    for (int i = 0; i < programs; ++i) {
      const pid_t pid = fork();
      if (pid == 0) {
        for (volatile unsigned turns = 0;;) {
          turns = turns + 1;
        }
      }
      pids_.push_back(pid);
    }
  }
  ~Stress() {
    for (const pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

 private:
  std::vector<pid_t> pids_;
};

TEST(Watch, AHealthyJobUnderStressRaisesNoAlarmThoughItPausesForGoodReasons) {
  const Stress stress(2 * static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  LaunchedJob job(Launch("healthy"));
  EXPECT_EQ(job.Wait(), 0) << job.Err();
  EXPECT_THAT(job.Err(), AllOf(Not(HasSubstr("hang")), Not(HasSubstr("straggler"))));
  EXPECT_FALSE(FileExists(job.folder() + "/run/report.json"));
}

}  // namespace
}  // namespace dtrain::launcher::watch_test
