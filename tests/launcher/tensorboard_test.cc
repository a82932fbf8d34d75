#include "launcher/export/tensorboard.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/console/record_line.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/temp_dir.h"

namespace dtrain::launcher {
namespace {

// What TensorBoard's own reader finds in a folder: "tag step value" lines.
constexpr char kReader[] = R"(
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
a = EventAccumulator(sys.argv[1]); a.Reload()
for tag in sorted(a.Tags()['scalars']):
    for e in a.Scalars(tag):
        print(tag, e.step, repr(round(e.value, 4)))
)";

std::string RunReader(const std::string& folder) {
  const char* const python = std::getenv("DTRAIN_TEST_PYTHON");
  EXPECT_NE(python, nullptr);
  const std::string script = folder + "/../reader.py";
  EXPECT_TRUE(WriteFileAtomic(script, kReader).ok());
  const std::string command = absl::StrFormat("'%s' '%s' '%s' 2>/dev/null",
                                              python == nullptr ? "" : python, script, folder);
  FILE* const pipe = popen(command.c_str(), "r");
  std::string output;
  std::array<char, 4096> chunk{};
  for (size_t n = 0; (n = fread(chunk.data(), 1, chunk.size(), pipe)) > 0;) {
    output.append(chunk.data(), n);
  }
  EXPECT_EQ(pclose(pipe), 0) << output;
  return output;
}

Json Step(int64_t step, double loss, int attempt = 0) {
  return Json{{"v", 1},         {"ts", 1700000000.5 + static_cast<double>(step)},
              {"kind", "step"}, {"attempt", attempt},
              {"step", step},   {"m", {{"train/loss", loss}, {"text", "no number"}}}};
}

TEST(TensorBoard, IsReadBackByTensorBoardAndAResumedRunReplacesWhatItRepeats) {
  const TempDir folder = *TempDir::Create(::testing::TempDir());
  const std::string logs = folder.path() + "/tb";
  {
    TensorBoardExport first(logs);
    for (int64_t step = 1; step <= 4; ++step) {
      ASSERT_TRUE(first.Add(Step(step, 10.0 - static_cast<double>(step))).ok());
    }
  }
  TensorBoardExport second(logs);  // Resumed from step 2.
  ASSERT_TRUE(second.Add(Step(3, 3.5, 1)).ok());
  const auto scalars = std::distance(std::filesystem::directory_iterator(logs), {});
  EXPECT_EQ(scalars, 2);
  EXPECT_EQ(RunReader(logs), "train/loss 1 9.0\ntrain/loss 2 8.0\ntrain/loss 3 3.5\n");
  std::filesystem::remove_all(logs);
}

TEST(TensorBoard, SurvivesATornTail) {
  const TempDir folder = *TempDir::Create(::testing::TempDir());
  const std::string logs = folder.path() + "/tb";
  TensorBoardExport writer(logs);
  ASSERT_TRUE(writer.Add(Step(1, 2.25)).ok());
  ASSERT_TRUE(writer.Add(Step(2, 1.25)).ok());
  const std::string path = std::filesystem::directory_iterator(logs)->path();
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 3);
  EXPECT_EQ(RunReader(logs), "train/loss 1 2.25\n");
  std::filesystem::remove_all(logs);
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
      ScalarsOf(*ParseRecord(R"({"m":{"a":1,"b":"NaN","c":"-Infinity","d":"x","e":[1]}})"));
  ASSERT_EQ(scalars.size(), 3U);
  EXPECT_TRUE(std::isnan(scalars[1].second));
  EXPECT_EQ(scalars[2].second, -INFINITY);
}

}  // namespace
}  // namespace dtrain::launcher
