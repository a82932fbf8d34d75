// `dtrain checkpoint prune` and `repair`: what they remove, and what they never do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/tool_runs.h"

namespace dtrain::checkpoint::tools_clear_test {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ClearTest : public ::testing::Test {
 protected:
  // Saves the steps in an attempt, which resumes from `from`, and ends it.
  EpochRecord Save(const std::vector<int64_t>& steps, std::optional<StepId> from = std::nullopt,
                   const std::map<int64_t, double>& losses = {}) {
    const auto storage = OpenPosixStorage(path_);
    const EpochRecord epoch = *BeginEpoch(**storage, "job", 1, from);
    for (const int64_t step : steps) {
      if (const auto loss = losses.find(step); loss != losses.end()) {
        state_.engine["metrics"] = {{"eval/loss", loss->second}};
      }
      SaveSharded(**storage, epoch, 1, step, state_);
    }
    return epoch;
  }
  std::vector<int64_t> Steps() const {
    const auto storage = OpenPosixStorage(path_);
    std::vector<int64_t> steps;
    const std::vector<StepId> ids = *ListCheckpoints(**storage);
    for (const StepId& id : ids) {
      steps.push_back(id.step);
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  }
  std::string Folder(int64_t step, int64_t epoch = 1) const {
    return absl::StrCat(path_, "/", StepId{epoch, step}.DirectoryName());
  }
  // Leaves what a save leaves that is killed before its manifest.
  void LeaveASave(int64_t step, int64_t epoch = 1) const {
    fs::create_directories(Folder(step, epoch) + "/model");
    DT_CHECK_OK(WriteFileAtomic(Folder(step, epoch) + "/model/model.safetensors", "partial"));
  }
  std::string Hint() const { return *ReadFile(path_ + "/latest"); }

  const TemporaryFolder folder_{TemporaryFolder::Where::kMemory};
  const std::string path_ = folder_.path() + "/checkpoints";
  ShardedState state_ = ShardedState::Random(1);
};

TEST_F(ClearTest, PruneKeepsTheNewestAndSaysWhatGoesAndItsBytes) {
  Save({10, 20, 30, 40, 50});
  const auto before = Snapshot(path_);
  const ToolRun dry = RunTool("prune --keep 2 --dry-run " + path_);
  EXPECT_EQ(dry.code, 0) << dry.output;
  EXPECT_THAT(dry.output, AllOf(ContainsRegex("would remove  step-000000000010.e1  [0-9.]+ kB\n"),
                                ContainsRegex("Would remove 3 checkpoints, [0-9.]+ kB; 2 stay\n")));
  EXPECT_EQ(Snapshot(path_), before);
  const ToolRun run = RunTool("prune --keep 2 " + folder_.path());
  EXPECT_EQ(run.code, 0) << run.output;
  EXPECT_THAT(run.output, AllOf(ContainsRegex("removed  step-000000000030.e1  [0-9.]+ kB\n"),
                                ContainsRegex("Removed 3 checkpoints, [0-9.]+ kB; 2 stay\n")));
  EXPECT_THAT(Steps(), ElementsAre(40, 50));
  EXPECT_FALSE(FileExists(Folder(30))) << "the folder has gone too";
  EXPECT_EQ(RunTool("verify " + path_).code, 0);
}

TEST_F(ClearTest, PruneGivesTheBytesOfTheFilesAsJson) {
  Save({10, 20, 30});
  uint64_t bytes = 0;
  for (const auto& [name, content] : Snapshot(Folder(10))) {
    bytes += content == "folder" ? 0 : content.size();
  }
  const Json json = ToolJson("prune --keep 2 " + path_);
  EXPECT_EQ(json["removed"], Json::array({{{"name", "step-000000000010.e1"}, {"bytes", bytes}}}));
  EXPECT_EQ(json["stay"], Json({"step-000000000030.e1", "step-000000000020.e1"}));
}

TEST_F(ClearTest, PruneKeepsMultiplesAndTheBestOfAMetric) {
  Save({10, 20, 30, 40, 50, 60}, std::nullopt,
       {{10, 0.5}, {20, 2.0}, {30, 1.0}, {40, 3.0}, {50, 4.0}, {60, 5.0}});
  const auto would_remove = [&](const std::string& options) {
    std::vector<std::string> names;
    const Json json = ToolJson(absl::StrCat("prune --keep 2 --dry-run ", path_, " ", options));
    for (const Json& removed : json["removed"]) {
      names.push_back(removed["name"].get<std::string>().substr(15, 2));
    }
    return names;
  };
  EXPECT_THAT(would_remove("--keep-every 20"), ElementsAre("10", "30"));
  EXPECT_THAT(would_remove("--keep-best 2 --metric eval/loss"), ElementsAre("20", "40"));
  EXPECT_THAT(would_remove("--keep-best 3 --metric eval/loss --larger-is-better"),
              ElementsAre("10", "20", "30"));
  EXPECT_THAT(would_remove("--keep-best 2 --metric eval/other"),
              ElementsAre("10", "20", "30", "40"));
  ExpectRefused("prune --keep 2 --keep-best 2 " + path_, 64, {"--metric"});
}

TEST_F(ClearTest, PruneNeverLeavesFewerThanTwoThatVerify) {
  Save({10, 20, 30, 40});
  FlipBit(Folder(40) + "/model/model.safetensors", -1);
  FlipBit(Folder(30) + "/model/model.safetensors", -1);
  FlipBit(Folder(20) + "/model/model.safetensors", -1);
  const ToolRun run = RunTool("prune --keep 2 " + path_);
  EXPECT_EQ(run.code, 0) << run.output;
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("does not count as kept  step-000000000040.e1: " + Folder(40) +
                              "/model/model.safetensors is damaged: bytes 0 to"),
                    HasSubstr("Removed 0 checkpoints, 0 B; 4 stay\n")));
  EXPECT_THAT(Steps(), ElementsAre(10, 20, 30, 40));
  for (const char* keep : {"1", "0", "-3", "x"}) {
    ExpectRefused(absl::StrCat("prune --keep ", keep, " ", path_), 64, {"--keep"});
  }
  ExpectRefused("prune " + path_, 64, {"--keep is required"});
}

TEST_F(ClearTest, PruneRefusesAFolderWithoutAManifestAndOneCheckpoint) {
  Save({10, 20, 30});
  ExpectRefused("prune --keep 2 " + Folder(10), 64, {"is one checkpoint"});
  for (const int64_t step : {10, 20, 30}) {
    fs::remove(Folder(step) + "/MANIFEST.json");
  }
  const auto before = Snapshot(path_);
  ExpectRefused("prune --keep 2 " + path_, 64, {path_, "holds no finished checkpoint"});
  EXPECT_EQ(Snapshot(path_), before);
}

TEST_F(ClearTest, PruneRemovesNothingWhileItIsNotKnownWhereRunsResume) {
  Save({10, 20, 30, 40});
  FlipBit(path_ + "/epochs/E00000001", 5);
  const auto before = Snapshot(path_);
  const ToolRun run = RunTool("prune --keep 2 " + path_, "/dev/null");
  EXPECT_EQ(run.code, 64);
  EXPECT_THAT(RunTool("prune --keep 2 " + path_).output,
              HasSubstr("/epochs/E00000001 is damaged, so it is not known"));
  EXPECT_EQ(Snapshot(path_), before);
}

TEST_F(ClearTest, PruneKeepsTheSourceOfTheAttemptAndRemovesWhatIsBesideTheLine) {
  Save({10, 20, 30, 40});
  Save({31, 32, 33}, StepId{1, 20});
  const Json json = ToolJson("prune --keep 2 " + path_);
  EXPECT_EQ(json["removed"].size(), 4U) << json;
  EXPECT_THAT(Steps(), ElementsAre(20, 32, 33));
}

TEST_F(ClearTest, PruneFollowsNoLink) {
  Save({10, 20, 30});
  const std::string outside = folder_.path() + "/outside";
  fs::create_directory(outside);
  DT_CHECK_OK(WriteFileAtomic(outside + "/precious", "text"));
  fs::create_directory_symlink(outside, Folder(10) + "/link");
  RunTool("prune --keep 2 " + path_);
  EXPECT_EQ(*ReadFile(outside + "/precious"), "text");
  EXPECT_THAT(Steps(), ElementsAre(20, 30));
}

// --- repair

TEST_F(ClearTest, RepairRemovesWhatACrashLeftAndNamesTheNewestInLatest) {
  Save({10, 20});
  LeaveASave(30);
  DT_CHECK_OK(WriteFileAtomic(path_ + "/.tmp-latest-0123", "x"));
  DT_CHECK_OK(WriteFileAtomic(path_ + "/epochs/.tmp-E00000002-0123", "x"));
  DT_CHECK_OK(WriteFileAtomic(Folder(20) + "/.tmp-MANIFEST.json-0123", "x"));
  DT_CHECK_OK(WriteFileAtomic(path_ + "/latest", "step-000000000010.e1\n"));
  const auto before = Snapshot(path_);
  const ToolRun dry = RunTool("repair --dry-run " + path_);
  EXPECT_EQ(dry.code, 0) << dry.output;
  EXPECT_THAT(dry.output,
              AllOf(HasSubstr("would remove  step-000000000030.e1, 7 B: a save that did not end\n"),
                    HasSubstr("would remove  .tmp-latest-0123, 1 B: a temporary file\n"),
                    HasSubstr("would remove  epochs/.tmp-E00000002-0123"),
                    HasSubstr("would remove  step-000000000020.e1/.tmp-MANIFEST.json-0123"),
                    HasSubstr("would rewrite  latest: names step-000000000020.e1\n")));
  EXPECT_EQ(Snapshot(path_), before);
  const ToolRun run = RunTool("repair " + folder_.path());
  EXPECT_EQ(run.code, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("removed  step-000000000030.e1"));
  auto after = Snapshot(path_);
  for (const auto& [name, content] : after) {
    EXPECT_THAT(name, AllOf(Not(HasSubstr("30.e1")), Not(HasSubstr(".tmp-"))));
  }
  EXPECT_EQ(Hint(), "step-000000000020.e1\n");
  EXPECT_THAT(Steps(), ElementsAre(10, 20));
  const ToolRun again = RunTool("repair " + path_);
  EXPECT_EQ(again.output, "Nothing to repair: 2 checkpoints, every byte verified.\n");
  EXPECT_EQ(Snapshot(path_), after);
}

TEST_F(ClearTest, AWriterThatStillLivesSomewhereIsFencedBeforeItsFilesGo) {
  SetLogLevel(LogLevel::kError);
  const EpochRecord epoch = Save({10});
  LeaveASave(20);
  EXPECT_EQ(ToolJson("repair " + path_)["begins_epoch"], true);
  const auto storage = OpenPosixStorage(path_);
  const SaveReport report = SaveOnRanks(**storage, OptionsFor(epoch), 1, 30)[0];
  EXPECT_EQ(report.outcome, SaveOutcome::kFenced) << report.status;
  const EpochRecord newest = *ReadEpoch(**storage, 2);
  EXPECT_EQ(newest.resumed_from, (StepId{1, 10}));
  EXPECT_EQ(newest.job, "job");
  const auto latest = FindLatest(**storage);
  EXPECT_EQ((*latest)->manifest().id, (StepId{1, 10})) << "a run goes on where it would have";
}

TEST_F(ClearTest, LeftoversOfOlderAttemptsNeedNoFence) {
  Save({10});
  Save({20}, StepId{1, 10});
  LeaveASave(15, 1);
  EXPECT_EQ(ToolJson("repair " + path_)["begins_epoch"], false);
  EXPECT_FALSE(FileExists(Folder(15)));
  EXPECT_FALSE(FileExists(path_ + "/epochs/E00000003"));
}

TEST_F(ClearTest, RepairRefusesWhileAProcessHoldsTheFolder) {
  Save({10});
  LeaveASave(20);
  const auto before = Snapshot(path_);
  {
    const auto held = OpenPosixStorage(path_);  // A rank holds it so.
    ExpectRefused("repair " + path_, 75,
                  {absl::StrCat("process ", getpid(), " ("), "a run holds it", path_});
  }
  EXPECT_EQ(Snapshot(path_), before);
  EXPECT_EQ(RunTool("repair " + path_).code, 0);
}

TEST_F(ClearTest, DamageIsNamedWithFileAndPlaceAndNothingOfItIsRemoved) {
  state_.exp_avg.resize(3 << 20);  // 12 MiB: three blocks.
  state_.exp_avg[1 << 20] = 1;
  Save({10, 20, 30});
  const std::string state = Folder(30) + "/state/rank-0-of-1.safetensors";
  FlipBit(state, 5 << 20);
  FlipBit(Folder(30) + "/model/config.json", 0);
  FlipBit(Folder(20) + "/MANIFEST.json", 10);
  const auto before = Snapshot(path_);
  const ToolRun run = RunTool("repair " + path_);
  EXPECT_EQ(run.code, 64);
  EXPECT_THAT(
      run.output,
      AllOf(HasSubstr(absl::StrCat("damaged  step-000000000030.e1: ", state,
                                   " is damaged: bytes 4194304 to 8388608")),
            HasSubstr("damaged  step-000000000030.e1: " + Folder(30) + "/model/config.json"),
            HasSubstr("damaged  step-000000000020.e1: " + Folder(20) + "/MANIFEST.json"),
            HasSubstr("rewrote  latest: names step-000000000010.e1\n"),
            HasSubstr("3 problems left, which cannot be repaired")));
  auto after = Snapshot(path_);
  EXPECT_EQ(after["latest"], "step-000000000010.e1\n");
  after["latest"] = before.at("latest");
  EXPECT_EQ(after, before);
  EXPECT_EQ(ToolJson("repair " + path_, 64)["damage"].size(), 3U);
}

TEST_F(ClearTest, ACheckpointThatHasLostItsManifestIsNoLeftover) {
  Save({10, 20});
  LeaveASave(30);
  fs::remove(Folder(20) + "/MANIFEST.json");  // `latest` names it.
  const auto before = Snapshot(path_);
  const ToolRun run = RunTool("repair " + path_);
  EXPECT_EQ(run.code, 64);
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("damaged  step-000000000020.e1: " + Folder(20) +
                              " has lost its MANIFEST.json"),
                    HasSubstr("leaves  step-000000000030.e1, 7 B: a save that did not end; the "
                              "newest checkpoint is damaged or lost")));
  EXPECT_EQ(Snapshot(path_), before);
}

TEST_F(ClearTest, RepairTakesARunAndNoSingleCheckpoint) {
  Save({10});
  ExpectRefused("repair " + Folder(10), 64, {"is one checkpoint"});
  ExpectRefused("repair " + folder_.path() + "/none", 64, {"is not a folder"});
}

TEST_F(ClearTest, RepairLeavesAFolderAloneInWhichNoRunHasSaved) {
  DT_CHECK_OK(WriteFileAtomic(folder_.path() + "/.tmp-of-another-program", "text"));
  ExpectRefused("repair " + folder_.path(), 64,
                {folder_.path() + " holds no checkpoint and no record of a run"});
  EXPECT_TRUE(FileExists(folder_.path() + "/.tmp-of-another-program"));
  fs::create_directories(path_ + "/epochs");  // A run was killed before its first record.
  DT_CHECK_OK(WriteFileAtomic(path_ + "/epochs/.tmp-E00000001-0123456789abcdef", "half"));
  EXPECT_EQ(RunTool("repair " + path_).code, 0);
  EXPECT_FALSE(FileExists(path_ + "/epochs/.tmp-E00000001-0123456789abcdef"));
}

TEST_F(ClearTest, AFileThatMayNotBeReadIsNoDamage) {
  Save({10, 20});
  fs::permissions(folder_.path(), fs::perms(0755));
  LeaveASave(30);
  const auto before = Snapshot(path_);
  ExpectRefused("repair " + path_, 64,
                {Folder(20) + "/state/rank-0-of-1.safetensors", "Permission denied"}, 65534);
  ExpectRefused("prune --keep 2 " + path_, 0, {"Removed 0 checkpoints"}, 65534);
  EXPECT_EQ(Snapshot(path_), before);
}

}  // namespace
}  // namespace dtrain::checkpoint::tools_clear_test
