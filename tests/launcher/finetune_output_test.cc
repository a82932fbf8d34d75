// `dtrain finetune` replaces no model but the one that the same run has written.
#include "launcher/commands/finetune_output.h"

#include <filesystem>

#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/temp_dir.h"

namespace dtrain::launcher::finetune_output_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class FinetuneOutputTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const char* const folder : {"/tuned", "/base", "/run-data"}) {
      std::filesystem::remove_all(place_.path() + folder);
    }
  }
  std::string SaidOf(const FinetuneOutput& output) {
    return std::string(CheckOutput(output).message());
  }
  void Write(const std::string& path, const std::string& text) {
    ASSERT_TRUE(MakeDirectories(std::filesystem::path(path).parent_path()).ok());
    ASSERT_TRUE(WriteFileAtomic(path, text).ok());
  }
  const TempDir place_ = *TempDir::Create("/tmp");
  const FinetuneOutput output_ = {.folder = place_.path() + "/tuned",
                                  .model_folder = place_.path() + "/base",
                                  .record = place_.path() + "/run-data/output.json"};
};

TEST_F(FinetuneOutputTest, AFolderThatIsNotThereOrEmptyIsFree) {
  EXPECT_EQ(SaidOf(output_), "");
  ASSERT_TRUE(MakeDirectories(output_.folder).ok());
  EXPECT_EQ(SaidOf(output_), "");
}

TEST_F(FinetuneOutputTest, AnotherModelIsLeftAloneUnlessItMayBeOverwritten) {
  Write(output_.folder + "/config.json", "{}");
  EXPECT_THAT(SaidOf(output_),
              AllOf(HasSubstr("/tuned holds a model that this run has not written"),
                    HasSubstr("--overwrite")));
  FinetuneOutput replaced = output_;
  replaced.overwrite = true;
  EXPECT_EQ(SaidOf(replaced), "");
}

TEST_F(FinetuneOutputTest, WhatTheRunHasWrittenMayBeWrittenAgainUntilItIsChanged) {
  Write(output_.folder + "/config.json", "{}");
  Write(output_.folder + "/model.safetensors", "weights");
  Write(output_.record, "{}");
  ASSERT_TRUE(RecordOutput(output_).ok());
  EXPECT_EQ(SaidOf(output_), "");
  FinetuneOutput other_run = output_;
  other_run.record = place_.path() + "/other-data/output.json";
  EXPECT_THAT(SaidOf(other_run), HasSubstr("has not written"));
  Write(output_.folder + "/model.safetensors", "other weights");
  EXPECT_THAT(SaidOf(output_), HasSubstr("was changed since"));
}

TEST_F(FinetuneOutputTest, TheModelsOwnFolderAndOtherFoldersAreNeverReplaced) {
  FinetuneOutput output = output_;
  output.overwrite = true;
  Write(output.folder + "/letters.txt", "dear");
  EXPECT_THAT(SaidOf(output), HasSubstr("is there and is no model folder"));
  Write(output.model_folder + "/config.json", "{}");
  output.folder = output.model_folder + "/../base/";
  EXPECT_THAT(SaidOf(output), HasSubstr("is the model's own folder"));
}

TEST_F(FinetuneOutputTest, WithoutAModelNothingIsRecorded) {
  EXPECT_TRUE(RecordOutput(output_).ok());
  EXPECT_FALSE(FileExists(output_.record));
}

}  // namespace
}  // namespace dtrain::launcher::finetune_output_test
