#include "runtime/job/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "base/system/move_aside.h"

namespace dtrain::run_directory_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RunDirectoryTest : public ::testing::Test {
 protected:
  RunDirectoryTest() {
    char name[] = "/tmp/dtrain-run-XXXXXX";
    root_ = mkdtemp(name);
  }
  ~RunDirectoryTest() override { std::filesystem::remove_all(root_); }
  static Config Make(std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), "train_batch_size=8");
    return *Config::Parse("{}", "(test)", overrides, 1);
  }
  // Writes the records of a run that has taken a step.
  static void TakeStep(const std::string& path) {
    ASSERT_TRUE(MakeDirectories(path + "/metrics").ok());
    ASSERT_TRUE(WriteFileAtomic(path + "/metrics/rank-0.jsonl", "{\"kind\":\"step\"}\n").ok());
  }
  std::string root_;
};

TEST_F(RunDirectoryTest, ASecondStartResumesUnderTheSameRunId) {
  const std::string path = root_ + "/a/b";
  const auto first = PrepareRunDirectory({.path = path}, Make({}));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_FALSE(first->resumed);
  EXPECT_FALSE(first->run_id.empty());
  TakeStep(path);
  const auto second =
      PrepareRunDirectory({.path = path, .run_id = "other"}, Make({"train_steps=99"}));
  ASSERT_TRUE(second.ok()) << "the length may change: " << second.status();
  EXPECT_TRUE(second->resumed);
  EXPECT_EQ(second->run_id, first->run_id);
}

TEST_F(RunDirectoryTest, AStepIsFoundWhereverItsRecordLies) {
  const std::string path = root_ + "/run";
  ASSERT_TRUE(PrepareRunDirectory({.path = path}, Make({"seed=1"})).ok());
  ASSERT_TRUE(MakeDirectories(path + "/metrics").ok());
  const auto is_run = [&](const std::string& records) {
    EXPECT_TRUE(WriteFileAtomic(path + "/metrics/rank-0.jsonl", records).ok());
    return PrepareRunDirectory({.path = path}, Make({"seed=1"}))->resumed;
  };
  const std::string step = "{\"kind\":\"step\"}\n";
  const std::string rest(1000, '\n');
  EXPECT_FALSE(is_run(""));
  EXPECT_FALSE(is_run(std::string(300'000, '\n') + "{\"kind\":\"config\"}\n"));
  for (const int before : {65'519, 65'520, 65'525, 65'530, 65'535, 65'536, 131'066, 300'000}) {
    EXPECT_TRUE(is_run(std::string(static_cast<size_t>(before), '\n') + step)) << before;
    EXPECT_TRUE(is_run(std::string(static_cast<size_t>(before), '\n') + step + rest)) << before;
  }
}

TEST_F(RunDirectoryTest, TheFolderThatRelativePathsStartFromIsRecorded) {
  ASSERT_TRUE(PrepareRunDirectory({.path = root_ + "/run"}, Make({"checkpoint.dir=ckpt"})).ok());
  const Json run = *ParseJson(*ReadFile(root_ + "/run/run.json"), "run.json");
  EXPECT_EQ(run["folder"], std::filesystem::current_path().string());
}

TEST_F(RunDirectoryTest, ARunOfAnotherConfigurationIsRefusedByItsFirstDifference) {
  const std::string path = root_ + "/run";
  ASSERT_TRUE(PrepareRunDirectory({.path = path}, Make({"seed=1"})).ok());
  ASSERT_TRUE(PrepareRunDirectory({.path = path}, Make({"seed=3"})).ok()) << "no step: no run";
  ASSERT_TRUE(PrepareRunDirectory({.path = path}, Make({"seed=1"})).ok());
  TakeStep(path);
  const auto other = PrepareRunDirectory({.path = path}, Make({"seed=2"}));
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("seed"));
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("--fresh"));
}

TEST_F(RunDirectoryTest, AChangeIsAcceptedByItsKeyOrSectionAndRecordedForGood) {
  const std::string path = root_ + "/run";
  ASSERT_TRUE(PrepareRunDirectory({.path = path}, Make({})).ok());
  TakeStep(path);
  const Config changed = Make({"optimizer.params.lr=0.5", "scheduler.type=WSD"});
  const auto refused = PrepareRunDirectory({.path = path}, changed);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("optimizer.params.lr was 0.001, now 0.5; accept it by --accept-change "
                        "optimizer.params.lr --accept-change scheduler, choose another by "
                        "--run-dir DIR, or --fresh moves the old run aside"));
  const auto half =
      PrepareRunDirectory({.path = path, .accept_changes = {"optimizer.params.lr"}}, changed);
  EXPECT_THAT(std::string(half.status().message()),
              HasSubstr("scheduler.type was absent, now \"WSD\""));
  const auto resumed = PrepareRunDirectory(
      {.path = path, .accept_changes = {"optimizer.params.lr", "scheduler"}}, changed);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_TRUE(resumed->resumed);
  const size_t first = resumed->accepted_now.size();  // The rate, and what belongs to the schedule.
  EXPECT_GE(first, 2U);
  // The next start needs no option; it keeps the record and adds to it.
  const auto next = PrepareRunDirectory(
      {.path = path, .accept_changes = {"train_batch_size"}},
      Make({"optimizer.params.lr=0.5", "scheduler.type=WSD", "train_batch_size=16"}));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_THAT(next->accepted_now, ElementsAre("train_batch_size was 8, now 16"));
  const Json run = *ParseJson(*ReadFile(path + "/run.json"), "run.json");
  ASSERT_EQ(run["accepted_changes"].size(), first + 1);
  EXPECT_EQ(run["accepted_changes"], next->accepted_changes);
  EXPECT_EQ(run["accepted_changes"][0]["key"], "optimizer.params.lr");
  EXPECT_EQ(run["accepted_changes"][0]["was"], 0.001);
  EXPECT_EQ(run["accepted_changes"][0]["now"], 0.5);
  EXPECT_EQ(run["accepted_changes"][first]["now"], 16);
}

TEST_F(RunDirectoryTest, WhatTheCheckpointsNeedIsNotAccepted) {
  const std::string path = root_ + "/run";
  ASSERT_TRUE(PrepareRunDirectory({.path = path}, Make({})).ok());
  TakeStep(path);
  const std::pair<const char*, const char*> keys[] = {
      {"model", "its checkpoints are of one model with its settings, shares of dropout aside; a "},
      {"model.hidden_size", "its checkpoints are of one model"},
      {"optimizer.type", "its checkpoints hold the states of one optimizer"},
      {"seed", "its checkpoints hold a position in the data"},
      {"train_steps", "may change whenever a run is resumed; leave the option out"},
      {"bf16.enabled", "may change whenever a run is resumed; leave the option out"},
      {"optimizer.params.l", "unknown key; nearest known key: \"optimizer.params.lr\""}};
  for (const auto& [key, says] : keys) {
    const auto run = PrepareRunDirectory({.path = path, .accept_changes = {key}}, Make({}));
    EXPECT_EQ(run.status().code(), absl::StatusCode::kInvalidArgument) << key;
    EXPECT_THAT(std::string(run.status().message()), HasSubstr(says)) << key;
  }
  // The refusal of a changed value has the same reason, and what can be done.
  const auto heads = PrepareRunDirectory({.path = path}, Make({"model.heads=2"}));
  EXPECT_THAT(
      std::string(heads.status().message()),
      HasSubstr(
          "model.heads was absent, now 2, which a resumed run must keep, because its "
          "checkpoints are of one model with its settings, shares of dropout aside; a new run "
          "can start from their weights (the folder model/ of a checkpoint); set it back, "
          "choose another by --run-dir DIR"));
  const auto power = PrepareRunDirectory({.path = path}, Make({"fp16.initial_scale_power=8"}));
  EXPECT_THAT(std::string(power.status().message()),
              HasSubstr("the scale of the first step alone"));
  const auto scale = PrepareRunDirectory({.path = path}, Make({"fp16.loss_scale=128"}));
  EXPECT_THAT(std::string(scale.status().message()),
              HasSubstr("fp16.loss_scale was 0, now 128.0; accept it by --accept-change "
                        "fp16.loss_scale, choose another"));
  // A difference that cannot be accepted is named even behind one that can.
  const auto both = PrepareRunDirectory({.path = path, .accept_changes = {}},
                                        Make({"optimizer.params.lr=0.5", "model.layers=3"}));
  EXPECT_THAT(std::string(both.status().message()), HasSubstr("model.layers was absent, now 3"));
  EXPECT_THAT(std::string(both.status().message()), ::testing::Not(HasSubstr("--accept-change")));
}

// It has no weights and no states; the settings beside it stay what they were.
TEST_F(RunDirectoryTest, AShareOfDropoutMayChangeByItsName) {
  const std::string path = root_ + "/run";
  const std::string lora = "finetune.lora.lora_dropout";
  ASSERT_TRUE(PrepareRunDirectory({.path = path}, Make({"model.hidden_size=8", lora + "=0"})).ok());
  TakeStep(path);
  const Config changed = Make({"model.hidden_size=8", "model.attn_pdrop=0.25", lora + "=0.5"});
  const auto refused = PrepareRunDirectory({.path = path}, changed);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("model.attn_pdrop was absent, now 0.25; accept it by --accept-change "
                        "model.attn_pdrop --accept-change finetune.lora.lora_dropout, choose"));
  const auto half =
      PrepareRunDirectory({.path = path, .accept_changes = {"model.attn_pdrop"}}, changed);
  EXPECT_THAT(std::string(half.status().message()),
              HasSubstr("finetune.lora.lora_dropout was 0, now 0.5; accept it by"));
  const auto shape =
      PrepareRunDirectory({.path = path, .accept_changes = {"model.attn_pdrop", lora}},
                          Make({"model.hidden_size=16", "model.attn_pdrop=0.25", lora + "=0.5"}));
  EXPECT_THAT(std::string(shape.status().message()), HasSubstr("model.hidden_size was 8, now 16"));
  const auto resumed =
      PrepareRunDirectory({.path = path, .accept_changes = {"model.attn_pdrop", lora}}, changed);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  // A value that the run did not have is absent: null would be one of JSON's values.
  EXPECT_THAT(resumed->accepted_now,
              ElementsAre("model.attn_pdrop was absent, now 0.25", lora + " was 0, now 0.5"));
  ASSERT_EQ(resumed->accepted_changes.size(), 2U);
  EXPECT_EQ(resumed->accepted_changes[0]["key"], "model.attn_pdrop");
  EXPECT_TRUE(resumed->accepted_changes[0]["was"].is_null());
  EXPECT_EQ(resumed->accepted_changes[0]["now"], 0.25);
  EXPECT_EQ(resumed->accepted_changes[1]["key"], lora);
  EXPECT_EQ(resumed->accepted_changes[1]["was"], 0);
}

TEST_F(RunDirectoryTest, FreshMovesTheOldRunAsideAndLosesNothing) {
  const std::string path = root_ + "/run";
  ASSERT_TRUE(PrepareRunDirectory({.path = path}, Make({"seed=1"})).ok());
  ASSERT_TRUE(WriteFileAtomic(path + "/precious", "x").ok());
  const auto fresh = PrepareRunDirectory({.path = path, .fresh = true}, Make({"seed=2"}));
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_FALSE(fresh->resumed);
  EXPECT_TRUE(FileExists(path + ".old-1/precious"));
}

TEST_F(RunDirectoryTest, FreshHoldsForLaterAttemptsUntilOneHasBegun) {
  const std::string path = root_ + "/run";
  const auto begins_anew = [&path](int attempt, bool is_fresh_job) {
    const auto run = PrepareRunDirectory({.path = path,
                                          .fresh = is_fresh_job && attempt == 0,
                                          .is_fresh_job = is_fresh_job,
                                          .attempt = attempt},
                                         Make({}));
    EXPECT_TRUE(run.ok()) << run.status();
    EXPECT_FALSE(FileExists(path + ".old-1")) << "it is moved aside by the first attempt alone";
    return run->begins_anew;
  };
  EXPECT_TRUE(begins_anew(0, true));
  EXPECT_TRUE(begins_anew(1, true));
  EXPECT_FALSE(begins_anew(1, false)) << "another launch, without --fresh";
  EXPECT_TRUE(begins_anew(2, true));
  TakeStep(path);
  EXPECT_FALSE(begins_anew(3, true)) << "the note may be there again after a loss of power";
  std::filesystem::remove_all(path + "/metrics");
  ASSERT_TRUE(EndFreshStart(path).ok());
  EXPECT_FALSE(begins_anew(4, true)) << "so does a job that is requeued on another host";
}

TEST_F(RunDirectoryTest, FreshLeavesTheFilesIntoWhichAnAgentWrites) {
  const std::string path = root_ + "/run";
  ASSERT_TRUE(PrepareRunDirectory({.path = path}, Make({"seed=1"})).ok());
  for (const char* file : {"/logs/attempt-0/rank-0.out", "/events.jsonl", "/events-node-1.jsonl",
                           "/metrics/rank-0.jsonl", "/precious"}) {
    const std::string name = path + file;
    ASSERT_TRUE(MakeDirectories(name.substr(0, name.rfind('/'))).ok());
    ASSERT_TRUE(WriteFileAtomic(name, "x").ok());
  }
  const auto fresh =
      PrepareRunDirectory({.path = path, .fresh = true, .has_agent = true}, Make({"seed=2"}));
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_FALSE(fresh->resumed);
  for (const char* file :
       {"/logs/attempt-0/rank-0.out", "/events.jsonl", "/events-node-1.jsonl", "/config.json"}) {
    EXPECT_TRUE(FileExists(path + file)) << file;
  }
  EXPECT_FALSE(FileExists(path + "/metrics"));
  for (const char* file : {"/metrics/rank-0.jsonl", "/precious", "/config.json", "/run.json"}) {
    EXPECT_TRUE(FileExists(path + ".old-1" + file)) << file;
  }
}

TEST_F(RunDirectoryTest, AFileInItsPlaceIsNamed) {
  ASSERT_TRUE(WriteFileAtomic(root_ + "/file", "x").ok());
  const auto run = PrepareRunDirectory({.path = root_ + "/file"}, Make({}));
  EXPECT_FALSE(run.ok());
  EXPECT_THAT(std::string(run.status().message()), HasSubstr(root_ + "/file"));
}

}  // namespace
}  // namespace dtrain::run_directory_test
