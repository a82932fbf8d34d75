// `dtrain finetune` replaces no model but the one that the same run has written.
#include "launcher/commands/finetune_output.h"

#include <chrono>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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
    for (const char* const folder : {"/tuned", "/base", "/run", "/run-data"}) {
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
  // What dtrain-finetune writes at the end of a run, of which the command knows nothing yet.
  void Export(const std::string& run, const std::string& weights = "weights") {
    Write(output_.folder + "/model.safetensors", weights);
    Write(output_.folder + "/config.json", "{}");
    Write(absl::StrCat(output_.folder, "/", kExportMark), absl::StrFormat(R"({"run": "%s"})", run));
  }
  void StartRun(const std::string& run) {
    Write(output_.run_dir + "/run.json", absl::StrFormat(R"({"id": "%s"})", run));
  }
  // Gives a file a time of its own, so that no two writes have the same.
  void ChangedAfterTheMark(const std::string& name) {
    namespace fs = std::filesystem;
    const auto marked = fs::last_write_time(absl::StrCat(output_.folder, "/", kExportMark));
    fs::last_write_time(absl::StrCat(output_.folder, "/", name), marked + std::chrono::seconds(1));
  }
  const TempDir place_ = *TempDir::Create("/tmp");
  const FinetuneOutput output_ = {.folder = place_.path() + "/tuned",
                                  .model_folder = place_.path() + "/base",
                                  .run_dir = place_.path() + "/run",
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

// The command was killed behind the export, before RecordOutput.
TEST_F(FinetuneOutputTest, AnExportThatWasNotRecordedIsKnownByItsMark) {
  StartRun("mine");
  Export("mine");
  EXPECT_EQ(SaidOf(output_), "");
  Write(output_.record, "{}");
  ASSERT_TRUE(RecordOutput(output_).ok());
  EXPECT_EQ(SaidOf(output_), "");
  // The next attempt is killed there too; what is recorded is the export before.
  std::filesystem::remove_all(output_.folder);
  Export("mine", "later weights");
  ChangedAfterTheMark(kExportMark);
  EXPECT_EQ(SaidOf(output_), "");
}

TEST_F(FinetuneOutputTest, AnExportOfAnotherRunIsLeftAlone) {
  Export("other");
  EXPECT_THAT(SaidOf(output_), HasSubstr("has not written")) << "no run has begun";
  StartRun("mine");
  EXPECT_THAT(SaidOf(output_), HasSubstr("has not written"));
  Write(absl::StrCat(output_.folder, "/", kExportMark), "no JSON");
  EXPECT_THAT(SaidOf(output_), HasSubstr("has not written"));
}

TEST_F(FinetuneOutputTest, AnExportThatSomebodyHasChangedIsLeftAloneWhetherItWasRecordedOrNot) {
  StartRun("mine");
  Export("mine");
  ChangedAfterTheMark("model.safetensors");
  EXPECT_THAT(SaidOf(output_), HasSubstr("was changed since"));
  Export("mine");
  Write(output_.record, "{}");
  ASSERT_TRUE(RecordOutput(output_).ok());
  // An older file of the same size, moved there: only the record knows the one that it replaced.
  std::filesystem::last_write_time(
      output_.folder + "/model.safetensors",
      std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
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
