// checkpoint.remote: a run whose nodes have lost their disks goes on from the second place, and a
// place that fails holds up no step.
#include "runtime/checkpoint/remote_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "checkpoint/restore/reader.h"
#include "checkpoint/storage/posix_storage.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "tests/runtime/checkpoint/hosts_training.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::remote_tier_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RankContext;
using testing::Tokens;
using testing::hosts::FlipAByte;

struct Training {
  std::string remote;
  std::vector<std::string> overrides = {};
  int64_t until = 6;
};

absl::Status Train(RankContext& context, const std::string& folder, const Training& training) {
  at::set_num_threads(1);
  std::vector<std::string> overrides = {
      "train_batch_size=36", "train_micro_batch_size_per_gpu=18",
      "deterministic=true",  "checkpoint.interval=2",
      "checkpoint.keep=2",   absl::StrCat("checkpoint.remote=", training.remote)};
  overrides.insert(overrides.end(), training.overrides.begin(), training.overrides.end());
  DT_ASSIGN_OR_RETURN(auto job, testing::MakeTestJob(
                                    {.run_dir = folder, .overrides = overrides, .rank = &context}));
  at::manual_seed(5);
  testing::Chain model;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
  DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
  checkpoints->Track("engine", *engine);
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  job->metrics().Log("own/resumed", static_cast<double>(engine->step()));
  Tokens source{engine->step(), job->rank(), job->world_size(), 1};
  while (engine->step() < training.until) {
    DT_RETURN_IF_ERROR(TakeStep(*engine, model, source).status());
    DT_RETURN_IF_ERROR(checkpoints->MaybeSave(engine->step()));
  }
  return checkpoints->Finish();
}

// The statuses of two ranks.
std::vector<absl::Status> TrainOn(const std::string& folder, const Training& training) {
  std::vector<absl::Status> all;
  for (const auto& result : testing::RunRanks(
           {.size = 2}, [&](RankContext& context) { return Train(context, folder, training); })) {
    all.push_back(result.status);
  }
  return all;
}

std::vector<int64_t> StepsIn(const std::string& folder) {
  std::vector<int64_t> steps;
  const auto storage = *checkpoint::OpenPosixStorage(folder);
  const std::vector<checkpoint::StepId> ids = *checkpoint::ListCheckpoints(*storage);
  for (const checkpoint::StepId& id : ids) {
    EXPECT_TRUE(checkpoint::Checkpoint::Open(*storage, id, checkpoint::Verify::kHashes).ok());
    steps.push_back(id.step);
  }
  return steps;
}

// The metrics' records of rank 0 that hold `text`.
std::vector<Json> Records(const std::string& folder, absl::string_view text) {
  std::vector<Json> found;
  const std::string all = ReadFile(folder + "/metrics/rank-0.jsonl", 1 << 24).value_or("");
  for (const absl::string_view line : absl::StrSplit(all, '\n', absl::SkipEmpty())) {
    if (const auto record = ParseJson(line, "metrics");
        record.ok() && absl::StrContains(line, text)) {
      found.push_back(*record);
    }
  }
  return found;
}

TEST(RemoteTierTest, ARunThatLostItsDiskGoesOnFromTheSecondPlace) {
  const testing::TempFolder folder;
  const testing::TempFolder remote;
  Training training{.remote = remote.path()};
  EXPECT_THAT(TrainOn(folder.path(), training), ElementsAre(absl::OkStatus(), absl::OkStatus()));
  EXPECT_EQ(StepsIn(remote.path()).size(), 2U);  // checkpoint.keep holds there too.
  EXPECT_THAT(StepsIn(remote.path()), ::testing::Contains(6));
  std::filesystem::remove_all(folder.path() + "/checkpoints");
  training.until = 8;
  EXPECT_THAT(TrainOn(folder.path(), training), ElementsAre(absl::OkStatus(), absl::OkStatus()));
  EXPECT_EQ(Records(folder.path(), "own/resumed").back()["m"]["own/resumed"], 6);
  EXPECT_THAT(StepsIn(remote.path()), ::testing::Contains(8));
  EXPECT_THAT(StepsIn(folder.path() + "/checkpoints"), ::testing::Contains(8));
}

// The disk beside the ranks has what is newer: it is not replaced by what is older.
TEST(RemoteTierTest, TheNewerPlaceCounts) {
  const testing::TempFolder folder;
  const testing::TempFolder remote;
  EXPECT_THAT(TrainOn(folder.path(), {.remote = remote.path()}),
              ElementsAre(absl::OkStatus(), absl::OkStatus()));
  EXPECT_THAT(TrainOn(folder.path(), {.remote = "", .until = 8}),
              ElementsAre(absl::OkStatus(), absl::OkStatus()));
  EXPECT_THAT(TrainOn(folder.path(), {.remote = remote.path(), .until = 9}),
              ElementsAre(absl::OkStatus(), absl::OkStatus()));
  EXPECT_EQ(Records(folder.path(), "own/resumed").back()["m"]["own/resumed"], 8);
  EXPECT_THAT(StepsIn(remote.path()), ::testing::Contains(9));
}

// A file stands where the folder of a checkpoint would be: its copy fails.
void Obstruct(const std::string& place, const std::vector<int64_t>& steps) {
  for (const int64_t step : steps) {
    ASSERT_TRUE(
        WriteFileAtomic(place + "/" + checkpoint::StepId{1, step}.DirectoryName(), "").ok());
  }
}

TEST(RemoteTierTest, ACopyThatFailsIsAnAlarmAndIsCaughtUpWith) {
  const testing::TempFolder folder;
  const testing::TempFolder remote;
  Obstruct(remote.path(), {2, 4});
  EXPECT_THAT(
      TrainOn(folder.path(), {.remote = remote.path(), .overrides = {"checkpoint.async=true"}}),
      ElementsAre(absl::OkStatus(), absl::OkStatus()));
  EXPECT_THAT(StepsIn(remote.path()), ElementsAre(6));
  const std::vector<Json> failed = Records(folder.path(), "remote_failed");
  ASSERT_FALSE(failed.empty());
  EXPECT_THAT(failed[0]["error"].get<std::string>(), HasSubstr(remote.path()));
}

// An outage in a copy, or the end of the process, leaves files there, and newer checkpoints are
// copied next.
TEST(RemoteTierTest, WhatCopiesThatDidNotEndHaveLeftIsRemoved) {
  const testing::TempFolder folder;
  const testing::TempFolder remote;
  const auto model_of = [&](const checkpoint::StepId& id) {
    return absl::StrCat(remote.path(), "/", id.DirectoryName(), "/model");
  };
  const checkpoint::StepId cut{1, 1};
  const checkpoint::StepId of_a_newer_attempt{9, 1};
  for (const checkpoint::StepId& id : {cut, of_a_newer_attempt}) {
    ASSERT_TRUE(MakeDirectories(model_of(id)).ok());
    ASSERT_TRUE(WriteFileAtomic(model_of(id) + "/model.safetensors", "a part").ok());
  }
  EXPECT_THAT(TrainOn(folder.path(), {.remote = remote.path()}), Each(absl::OkStatus()));
  EXPECT_THAT(StepsIn(remote.path()), Contains(6));
  EXPECT_FALSE(FileExists(model_of(cut)));
  EXPECT_TRUE(FileExists(model_of(of_a_newer_attempt))) << "its copy may be under way";
}

TEST(RemoteTierTest, ALastCheckpointThatIsHereAloneIsSaidAndTheNextStartCopiesIt) {
  const testing::TempFolder folder;
  const testing::TempFolder remote;
  Obstruct(remote.path(), {6});
  const std::vector<absl::Status> ended = TrainOn(folder.path(), {.remote = remote.path()});
  for (const absl::Status& status : ended) {  // None ends while rank 0 still copies.
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(status.message(),
                HasSubstr("the checkpoint of step 6 of epoch 1 is durable here, but not in"));
  }
  EXPECT_THAT(StepsIn(folder.path() + "/checkpoints"), ::testing::Contains(6));
  std::filesystem::remove(
      absl::StrCat(remote.path(), "/", checkpoint::StepId{1, 6}.DirectoryName()));
  EXPECT_THAT(TrainOn(folder.path(), {.remote = remote.path()}), Each(absl::OkStatus()));
  EXPECT_THAT(StepsIn(remote.path()), Contains(6));
}

// Steps 4 and 6, each the last one of an attempt, in both places.
void SaveInBothPlaces(const std::string& folder, const std::string& remote) {
  for (const int64_t until : {4, 6}) {
    ASSERT_THAT(TrainOn(folder, {.remote = remote, .until = until}), Each(absl::OkStatus()));
  }
  ASSERT_THAT(StepsIn(remote), ElementsAre(6, 4));
  ASSERT_THAT(StepsIn(folder + "/checkpoints"), ElementsAre(6, 4));
}

// A file in the checkpoint of step 4 or 6 that SaveInBothPlaces has made.
std::string FileOf(const std::string& place, int64_t step, const std::string& name) {
  const checkpoint::StepId id{step == 4 ? 1 : 2, step};
  return absl::StrCat(place, "/", id.DirectoryName(), "/", name);
}
constexpr char kState[] = "state/rank-1-of-2.safetensors";

int64_t Resumed(const std::string& folder) {
  return Records(folder, "own/resumed").back()["m"]["own/resumed"].get<int64_t>();
}

TEST(RemoteTierTest, ADamagedCopyIsPassedOverForTheOneBefore) {
  const testing::TempFolder folder;
  const testing::TempFolder remote;
  ASSERT_NO_FATAL_FAILURE(SaveInBothPlaces(folder.path(), remote.path()));
  std::filesystem::remove_all(folder.path() + "/checkpoints");
  const Training more{.remote = remote.path(), .until = 8};
  FlipAByte(FileOf(remote.path(), 6, kState));
  FlipAByte(FileOf(remote.path(), 4, kState));
  const std::vector<absl::Status> refused = TrainOn(folder.path(), more);
  EXPECT_EQ(refused[0].code(), absl::StatusCode::kFailedPrecondition) << refused[0];
  EXPECT_THAT(std::string(refused[0].message()),
              AllOf(HasSubstr(FileOf(remote.path(), 6, kState)), HasSubstr("none is whole"),
                    HasSubstr("--fresh")));
  EXPECT_THAT(StepsIn(folder.path() + "/checkpoints"), ::testing::IsEmpty());
  FlipAByte(FileOf(remote.path(), 4, kState));  // It is again as it was.
  EXPECT_THAT(TrainOn(folder.path(), more), Each(absl::OkStatus()));
  EXPECT_EQ(Resumed(folder.path()), 4);
  EXPECT_THAT(StepsIn(folder.path() + "/checkpoints"), Contains(8));
}

TEST(RemoteTierTest, WhatIsDamagedHereIsReplacedByItsCopy) {
  const testing::TempFolder first;
  const testing::TempFolder first_remote;
  ASSERT_NO_FATAL_FAILURE(SaveInBothPlaces(first.path(), first_remote.path()));
  const std::vector<std::function<void(const std::string& place)>> damages = {
      [](const std::string& place) { FlipAByte(FileOf(place, 6, kState)); },
      [](const std::string& place) { FlipAByte(FileOf(place, 6, "MANIFEST.json")); },
      [](const std::string& place) { std::filesystem::remove(FileOf(place, 6, kState)); }};
  for (size_t i = 0; i < damages.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("damage ", i));
    const testing::TempFolder folder;
    const testing::TempFolder remote;
    const std::string here = folder.path() + "/checkpoints";
    std::filesystem::copy(first.path() + "/checkpoints", here,
                          std::filesystem::copy_options::recursive);
    std::filesystem::copy(first_remote.path(), remote.path(),
                          std::filesystem::copy_options::recursive);
    damages[i](here);
    EXPECT_THAT(TrainOn(folder.path(), {.remote = remote.path(), .until = 8}),
                Each(absl::OkStatus()));
    EXPECT_EQ(Resumed(folder.path()), 6);
    EXPECT_THAT(StepsIn(here), ElementsAre(8, 6)) << "both are whole";
  }
}

// A run that went back to an older step keeps to it: the newer one there is off its line.
TEST(RemoteTierTest, WhatAnAttemptHasLeftBehindIsNotBroughtBack) {
  const testing::TempFolder folder;
  const testing::TempFolder remote;
  ASSERT_NO_FATAL_FAILURE(SaveInBothPlaces(folder.path(), remote.path()));
  FlipAByte(FileOf(folder.path() + "/checkpoints", 6, kState));
  // Without the second place it goes back, and ends before it has saved.
  EXPECT_THAT(TrainOn(folder.path(), {.remote = "", .until = 4}), Each(absl::OkStatus()));
  EXPECT_EQ(Resumed(folder.path()), 4);
  EXPECT_THAT(TrainOn(folder.path(), {.remote = remote.path(), .until = 8}),
              Each(absl::OkStatus()));
  EXPECT_EQ(Resumed(folder.path()), 4);
  EXPECT_THAT(StepsIn(remote.path()), Contains(8));
}

// Else two attempts of one number would write there.
TEST(RemoteTierTest, AnAttemptOnANewDiskHasALaterNumberThanOneThatHasSavedNothing) {
  const testing::TempFolder folder;
  const testing::TempFolder remote;
  ASSERT_NO_FATAL_FAILURE(SaveInBothPlaces(folder.path(), remote.path()));
  const testing::TempFolder third;  // Goes on from step 6, and ends there.
  EXPECT_THAT(TrainOn(third.path(), {.remote = remote.path(), .until = 6}), Each(absl::OkStatus()));
  const testing::TempFolder fourth;
  EXPECT_THAT(TrainOn(fourth.path(), {.remote = remote.path(), .until = 8}),
              Each(absl::OkStatus()));
  for (const std::string& place : {remote.path(), fourth.path() + "/checkpoints"}) {
    EXPECT_TRUE(FileExists(
        absl::StrCat(place, "/", checkpoint::StepId{4, 8}.DirectoryName(), "/MANIFEST.json")))
        << place;
  }
  // The third's disk comes back, and goes on from where the fourth was.
  EXPECT_THAT(TrainOn(third.path(), {.remote = remote.path(), .until = 9}), Each(absl::OkStatus()));
  EXPECT_EQ(Resumed(third.path()), 8);
}

// Else it would begin an attempt of a number that the second place knows, which copies nothing.
TEST(RemoteTierTest, ADiskThatComesBackFollowsTheNewestAttemptThoughItHasSavedNothing) {
  const testing::TempFolder folder;
  const testing::TempFolder remote;
  ASSERT_NO_FATAL_FAILURE(SaveInBothPlaces(folder.path(), remote.path()));
  std::filesystem::remove_all(
      absl::StrCat(remote.path(), "/", checkpoint::StepId{2, 6}.DirectoryName()));
  const testing::TempFolder third;  // Goes on from step 4, and ends there.
  EXPECT_THAT(TrainOn(third.path(), {.remote = remote.path(), .until = 4}), Each(absl::OkStatus()));
  EXPECT_THAT(TrainOn(folder.path(), {.remote = remote.path(), .until = 8}),
              Each(absl::OkStatus()));
  EXPECT_EQ(Resumed(folder.path()), 4);
  EXPECT_THAT(StepsIn(remote.path()), Contains(8));
}

TEST(RemoteTierTest, ThePlaceOfAnotherRunIsRefusedAndLeavesThisOneAsItWas) {
  const testing::TempFolder folder;
  const testing::TempFolder other;
  const testing::TempFolder remote;
  ASSERT_NO_FATAL_FAILURE(SaveInBothPlaces(other.path(), remote.path()));
  EXPECT_THAT(TrainOn(folder.path(), {.remote = "", .until = 2}), Each(absl::OkStatus()));
  const absl::Status refused = TrainOn(folder.path(), {.remote = remote.path(), .until = 4})[0];
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the two places hold different runs"));
  EXPECT_TRUE(FileExists(folder.path() + "/checkpoints/epochs/E00000001"));
  EXPECT_FALSE(FileExists(folder.path() + "/checkpoints/epochs/E00000002"));
}

TEST(RemoteTierTest, ACopyThatHasLostAFileDoesNotCountAsKept) {
  const testing::TempFolder folder;
  const testing::TempFolder remote;
  ASSERT_NO_FATAL_FAILURE(SaveInBothPlaces(folder.path(), remote.path()));
  std::filesystem::remove(FileOf(remote.path(), 6, kState));
  EXPECT_THAT(TrainOn(folder.path(), {.remote = remote.path(), .until = 8}),
              Each(absl::OkStatus()));
  EXPECT_TRUE(FileExists(FileOf(remote.path(), 4, "MANIFEST.json"))) << "two are to stay";
  EXPECT_TRUE(FileExists(FileOf(remote.path(), 4, kState)));
}

TEST(RemoteTierTest, WrongPlacesAreRefusedByName) {
  const testing::TempFolder folder;
  EXPECT_THAT(TrainOn(folder.path(), {.remote = folder.path() + "/checkpoints"})[0].message(),
              HasSubstr("the folder of the checkpoints themselves"));
  EXPECT_THAT(TrainOn(folder.path(), {.remote = "/proc/no/such"})[0].message(),
              HasSubstr("checkpoint.remote: "));
  // A folder in which nobody may make a file, root neither.
  const absl::Status read_only = TrainOn(folder.path(), {.remote = "/sys/kernel"})[0];
  EXPECT_EQ(read_only.code(), absl::StatusCode::kPermissionDenied) << read_only;
  EXPECT_THAT(std::string(read_only.message()),
              HasSubstr("checkpoint.remote cannot be written: cannot create /sys/kernel/"));
  EXPECT_THAT(TrainOn(folder.path(), {.remote = "s3://"})[0].message(),
              HasSubstr("checkpoint.remote: "));
}

}  // namespace
}  // namespace dtrain::remote_tier_test
