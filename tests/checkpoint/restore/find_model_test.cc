// The model that a path means: what people type first, and what is damaged.
#include "checkpoint/restore/find_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/status.h"
#include "checkpoint/commit/epoch.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/tool_runs.h"

namespace dtrain::checkpoint::find_model_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class FindModelTest : public ::testing::Test {
 protected:
  // A run directory with checkpoints of steps 100 and 200.
  void SetUp() override {
    fs::create_directories(run_ + "/checkpoints");
    Write(run_ + "/config.json", "{\"checkpoint\": {\"dir\": \"\"}}");
    Write(run_ + "/run.json", "{}");
    const RunFolder run = BeginRun(run_ + "/checkpoints");
    older_ = SaveSharded(*run.storage, run.epoch, 2, 100, state_);
    newest_ = SaveSharded(*run.storage, run.epoch, 2, 200, state_);
  }
  static void Write(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
  }
  static std::string Found(const std::string& path) {
    const absl::StatusOr<std::string> found = FindModel(path);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.value_or("");
  }
  // The message for a path that has no model; `code` is how a program ends then.
  static std::string Why(const std::string& path, int code = kExitUsage) {
    const absl::Status status = FindModel(path).status();
    EXPECT_EQ(ExitCodeFor(status), code) << status;
    return std::string(status.message());
  }
  const TemporaryFolder folder_;
  const std::string run_ = folder_.path() + "/runs/gpt";
  const ShardedState state_ = ShardedState::Random(7);
  std::string older_;
  std::string newest_;
};

TEST_F(FindModelTest, ARunItsCheckpointsAndOneOfThemHaveAModel) {
  EXPECT_EQ(Found(run_), newest_ + "/model");
  EXPECT_EQ(Found(run_ + "/"), newest_ + "/model");
  EXPECT_EQ(Found(run_ + "/checkpoints"), newest_ + "/model");
  EXPECT_EQ(Found(older_), older_ + "/model");
  EXPECT_EQ(Found(older_ + "/model"), older_ + "/model");
  EXPECT_TRUE(fs::exists(Found(run_) + "/config.json"));
}

TEST_F(FindModelTest, ADamagedModelGivesWayToAnOlderOne) {
  const std::string weights = newest_ + "/model/model-00001-of-00002.safetensors";
  FlipBit(weights, -1);
  EXPECT_EQ(Found(run_), older_ + "/model");
  EXPECT_THAT(Why(newest_), AllOf(HasSubstr("none of the 1 checkpoints"), HasSubstr(weights)));
  fs::remove(older_ + "/model/config.json");
  EXPECT_THAT(Why(run_), AllOf(HasSubstr("none of the 2 checkpoints"), HasSubstr(weights)));
}

TEST_F(FindModelTest, StatesThatAreDamagedDoNotMatter) {
  FlipBit(newest_ + "/" + StatePath(0, 2), -1);
  EXPECT_EQ(Found(run_), newest_ + "/model");
}

TEST_F(FindModelTest, WhatHoldsNoModelIsNamedWithWhatToGive) {
  EXPECT_THAT(Why(folder_.path() + "/nowhere"),
              AllOf(HasSubstr("nowhere is no model folder"), HasSubstr("run directory")));
  EXPECT_THAT(Why(folder_.path()), HasSubstr("no checkpoint"));
  EXPECT_THAT(Why("s3://bucket/runs/gpt"),
              HasSubstr("dtrain checkpoint export s3://bucket/runs/gpt FOLDER"));
  const std::string fresh = folder_.path() + "/fresh";
  fs::create_directories(fresh + "/checkpoints/epochs");
  Write(fresh + "/run.json", "{}");
  EXPECT_THAT(Why(fresh), HasSubstr("holds no finished checkpoint"));
}

// A stale writer's commit is not the run's newest model.
TEST_F(FindModelTest, ACommitThatIsNotOnTheLineageIsNotTaken) {
  const auto storage = OpenPosixStorage(run_ + "/checkpoints");
  ASSERT_TRUE(storage.ok()) << storage.status();
  const auto resumed = BeginEpoch(**storage, "job", 2, StepId{1, 100});
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(Found(run_), older_ + "/model");
  const auto fresh = BeginEpoch(**storage, "job", 2, std::nullopt);
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_THAT(Why(run_), AllOf(HasSubstr("newest attempt, which began anew"), HasSubstr(newest_)));
  EXPECT_EQ(Found(older_), older_ + "/model");
}

TEST_F(FindModelTest, CopiesOfACheckpointHaveAModelWithoutItsRecords) {
  const std::string copied = folder_.path() + "/copied";
  fs::create_directory(copied);
  fs::copy(newest_ + "/model", copied + "/model");
  EXPECT_EQ(Found(copied), copied + "/model");
  const std::string alone = folder_.path() + "/alone";
  fs::create_directory(alone);
  fs::copy(newest_, alone + "/" + fs::path(newest_).filename().string(),
           fs::copy_options::recursive);
  EXPECT_EQ(Found(alone), alone + "/" + fs::path(newest_).filename().string() + "/model");
  const std::string renamed = folder_.path() + "/best";
  fs::copy(newest_, renamed, fs::copy_options::recursive);
  EXPECT_EQ(Found(renamed), renamed + "/model");
}

}  // namespace
}  // namespace dtrain::checkpoint::find_model_test
