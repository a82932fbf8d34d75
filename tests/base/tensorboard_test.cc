// TensorBoard itself reads the files (tests/testing/read_tensorboard.py).
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/json.h"
#include "base/tensorboard/export.h"
#include "base/tensorboard/hparams.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::tensorboard_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TensorBoardTest : public ::testing::Test {
 protected:
  TensorBoardTest() {
    fs::remove_all(folder_);
    fs::create_directories(run_dir());
  }
  ~TensorBoardTest() override { fs::remove_all(folder_); }

  std::string run_dir() const { return folder_ + "/runs/gpt"; }
  std::string files() const { return run_dir() + "/report/tensorboard"; }
  void Write(const std::string& name, const Json& json) const {
    ASSERT_TRUE(WriteFileAtomic(absl::StrCat(run_dir(), "/", name), DumpJson(json, 2)).ok());
  }
  // The values that TensorBoard shows for the folder of all runs.
  Json Read() const {
    const auto variable = [](const char* name) {
      const char* const value = std::getenv(name);
      EXPECT_NE(value, nullptr) << name;
      return std::string(value == nullptr ? "" : value);
    };
    const std::string command =
        absl::StrFormat("'%s' '%s' '%s' 2>'%s/errors'", variable("DTRAIN_PYTHON"),
                        variable("DTRAIN_TEST_READER"), folder_ + "/runs", folder_);
    FILE* const pipe = popen(command.c_str(), "r");
    std::string output;
    std::array<char, 4096> chunk{};
    for (size_t n = 0; (n = fread(chunk.data(), 1, chunk.size(), pipe)) > 0;) {
      output.append(chunk.data(), n);
    }
    EXPECT_EQ(pclose(pipe), 0) << ReadFile(folder_ + "/errors").value_or("");
    return ParseJson(output, "reader").value_or(Json());
  }

 private:
  const std::string folder_ =
      absl::StrCat(::testing::TempDir(), "tensorboard-",
                   ::testing::UnitTest::GetInstance()->current_test_info()->name(), "-", getpid());
};

Json Step(int64_t step, double loss, int attempt = 0) {
  return Json{{"v", 1},         {"ts", 1700000000.5 + static_cast<double>(step)},
              {"kind", "step"}, {"attempt", attempt},
              {"step", step},   {"m", {{"train/loss", loss}, {"text", "no number"}}}};
}

Json ConfigRecord(int64_t train_steps, int attempt = 0) {
  return Json{{"v", 1},    {"ts", 1700000000.25},        {"kind", "config"},   {"attempt", attempt},
              {"step", 0}, {"train_steps", train_steps}, {"m", Json::object()}};
}

TEST_F(TensorBoardTest, AResumedRunReplacesWhatItRepeats) {
  Write("config.json", {{"seed", 1}});
  Write("run.json", {{"id", "abc"}, {"hyperparameters", {{"seed", 1}}}});
  {
    TensorBoardExport first(run_dir());
    ASSERT_TRUE(first.Add(ConfigRecord(9)).ok());
    for (int64_t step = 1; step <= 4; ++step) {
      ASSERT_TRUE(first.Add(Step(step, 10.0 - static_cast<double>(step))).ok());
    }
  }
  TensorBoardExport second(run_dir());  // Resumed from step 2.
  ASSERT_TRUE(second.Add(ConfigRecord(9, 1)).ok());
  ASSERT_TRUE(second.Add(Step(3, 3.5, 1)).ok());
  EXPECT_EQ(std::distance(fs::directory_iterator(files()), {}), 2);
  const Json expected = {{1, 9.0}, {2, 8.0}, {3, 3.5}};
  const Json shown = Read();
  EXPECT_EQ(shown["scalars"]["gpt/report/tensorboard"]["train/loss"], expected);
  EXPECT_EQ(shown["hparams"].size(), 1U) << "two attempts are one run";
  EXPECT_TRUE(shown["texts"]["gpt/report/tensorboard"].contains("configuration"));
}

TEST_F(TensorBoardTest, SurvivesATornTail) {
  TensorBoardExport writer(run_dir());
  ASSERT_TRUE(writer.Add(Step(1, 2.25)).ok());
  ASSERT_TRUE(writer.Add(Step(2, 1.25)).ok());
  const std::string path = fs::directory_iterator(files())->path();
  fs::resize_file(path, fs::file_size(path) - 3);
  const Json expected = Json::array({Json::array({1, 2.25})});
  EXPECT_EQ(Read()["scalars"]["gpt/report/tensorboard"]["train/loss"], expected);
}

TEST_F(TensorBoardTest, ShowsHyperparametersConfigurationAndOwnMetrics) {
  Write("config.json", {{"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.003}}}}},
                        {"metrics", {{"tensorboard", true}}},
                        {"model", {{"hidden_size", 256}}},
                        {"origins",
                         {{"optimizer.type", "default"},
                          {"optimizer.params.lr", "file"},
                          {"metrics.tensorboard", "default"},
                          {"model", "file"}}}});
  Write("run.json", {{"id", "abc123"},
                     {"world_size", 2},
                     {"versions", {{"dtrain", "0.1.0"}}},
                     {"hyperparameters",
                      {{"world_size", 2},
                       {"optimizer.type", "AdamW"},
                       {"optimizer.params.lr", 0.003},
                       {"deterministic", true},
                       {"train_batch_size", nullptr},
                       {"optimizer.params.betas", {0.9, 0.95}},
                       {"model", {{"hidden_size", 256}}}}}});
  TensorBoardExport writer(run_dir());
  ASSERT_TRUE(writer.Add(ConfigRecord(3)).ok());
  for (int64_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE(writer.Add(Step(step, 2.5)).ok());
  }
  // A program's own value, logged before the record of the last step.
  Json own = Step(3, 0);
  own["m"] = {{"own/accuracy", 0.75}};
  ASSERT_TRUE(writer.Add(own).ok());
  const Json shown = Read();
  const std::string name = "gpt/report/tensorboard";
  ASSERT_EQ(shown["hparams"].size(), 1U) << shown;
  const Json& session = shown["hparams"][0];
  EXPECT_EQ(session["session"], name);
  EXPECT_EQ(session["group"], "abc123");
  EXPECT_EQ(session["status"], "STATUS_SUCCESS");
  EXPECT_EQ(nlohmann::json(session["values"]),
            nlohmann::json({{"world_size", 2.0},
                            {"optimizer.type", "AdamW"},
                            {"optimizer.params.lr", 0.003},
                            {"deterministic", true},
                            {"optimizer.params.betas", "[0.9,0.95]"},
                            {"model.hidden_size", 256.0}}));
  EXPECT_EQ(session["metrics"]["train/loss"], 2.5);
  EXPECT_EQ(session["metrics"]["own/accuracy"], 0.75);
  EXPECT_EQ(shown["scalars"][name]["own/accuracy"], Json::array({Json::array({3, 0.75})}));
  EXPECT_THAT(shown["texts"][name]["configuration"].get<std::string>(),
              AllOf(HasSubstr("| `optimizer.params.lr` | `0.003` | file |"),
                    HasSubstr("| `optimizer.type` | `\"AdamW\"` | default |"),
                    HasSubstr("| `model.hidden_size` | `256` | file |")));
  EXPECT_THAT(shown["texts"][name]["run"].get<std::string>(),
              AllOf(HasSubstr("| versions.dtrain | `0.1.0` |"), HasSubstr("| id | `abc123` |")));
}

TEST_F(TensorBoardTest, ARunThatIsNotDoneIsNotShownAsDone) {
  Write("config.json", {{"seed", 1}});
  Write("run.json", {{"id", "abc"}, {"hyperparameters", {{"seed", 1}}}});
  TensorBoardExport writer(run_dir());
  ASSERT_TRUE(writer.Add(ConfigRecord(3)).ok());
  ASSERT_TRUE(writer.Add(Step(2, 2.5)).ok());
  EXPECT_EQ(Read()["hparams"][0]["status"], "STATUS_UNKNOWN");
}

TEST_F(TensorBoardTest, TheConfigurationMaySwitchItOff) {
  Write("config.json", {{"metrics", {{"tensorboard", false}}}});
  TensorBoardExport writer(run_dir());
  ASSERT_TRUE(writer.Add(ConfigRecord(3)).ok());
  ASSERT_TRUE(writer.Add(Step(1, 2.5)).ok());
  EXPECT_FALSE(FileExists(files()));
}

TEST_F(TensorBoardTest, StaysOffAfterAnError) {
  ASSERT_TRUE(WriteFileAtomic(run_dir() + "/report", "a file in its way").ok());
  TensorBoardExport writer(run_dir());
  EXPECT_FALSE(writer.Add(Step(1, 2.5)).ok());
  EXPECT_TRUE(writer.Add(Step(2, 2.5)).ok()) << "said once";
}

TEST(ConfigTable, KeepsTheTableWholeWhateverValuesHold) {
  EXPECT_EQ(ConfigTable({{"a", "x|y`z"}, {"b", Json::object()}}),
            "| key | value | from |\n|---|---|---|\n"
            "| `a` | `\"x\\|y'z\"` |  |\n| `b` | `{}` |  |\n");
}

TEST(FrameRecord, MatchesTheFormat) {
  // The empty record: length 0, masked crc32c of eight zero bytes, masked crc32c of nothing.
  const std::string record = FrameRecord("");
  ASSERT_EQ(record.size(), 16U);
  EXPECT_EQ(record.substr(0, 8), std::string(8, '\0'));
  EXPECT_EQ(record.substr(12), std::string("\xd8\xea\x82\xa2", 4));
}

TEST(ScalarsOf, TakesNumbersAndSpeltNonFiniteOnes) {
  const auto scalars =
      ScalarsOf(*ParseJson(R"({"m":{"a":1,"b":"NaN","c":"-Infinity","d":"x","e":[1]}})", "record"));
  ASSERT_EQ(scalars.size(), 3U);
  EXPECT_TRUE(std::isnan(scalars[1].second));
  EXPECT_EQ(scalars[2].second, -INFINITY);
}

}  // namespace
}  // namespace dtrain::tensorboard_test
