#include "runtime/job/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "base/json.h"

namespace dtrain::run_directory_test {
namespace {

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
  // As if the run had taken a step.
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

TEST_F(RunDirectoryTest, FreshMovesTheOldRunAsideAndLosesNothing) {
  const std::string path = root_ + "/run";
  ASSERT_TRUE(PrepareRunDirectory({.path = path}, Make({"seed=1"})).ok());
  ASSERT_TRUE(WriteFileAtomic(path + "/precious", "x").ok());
  const auto fresh = PrepareRunDirectory({.path = path, .fresh = true}, Make({"seed=2"}));
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_FALSE(fresh->resumed);
  EXPECT_TRUE(FileExists(path + ".old-1/precious"));
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
