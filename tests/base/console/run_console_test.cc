// The output for people from a run's records, on terminals of 80 and 40 columns and in a plain log.
#include "base/console/run_console.h"

#include <fcntl.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/console/record_line.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/console/shown_by.h"

namespace dtrain::run_console_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

Json Step(int64_t step, double loss = 2.5) {
  return {{"kind", "step"},
          {"step", step},
          {"m",
           {{"train/loss", loss},
            {"train/grad_norm", 1.25},
            {"train/lr", 3e-4},
            {"perf/images_per_s", 1234.0},
            {"time/eta_s", 65.0}}}};
}

Json Own(int64_t step, const std::string& name, double value) {
  return {{"kind", "step"}, {"step", step}, {"m", {{name, value}}}};
}

Json Eval(int64_t step) { return {{"kind", "eval"}, {"step", step}, {"m", {{"eval/loss", 2.25}}}}; }

Json Settings(int64_t steps, int64_t interval, const std::vector<std::string>& columns) {
  Json record = {{"kind", "config"}, {"step", 0}, {"m", Json::object()}};
  record.update(ProgressSettings(steps, interval, columns));
  return record;
}

Json BannerRecord() {
  return {{"kind", "event"},
          {"step", 0},
          {"name", kBannerEvent},
          {"title", "dtrain 0.1.0  run 13b50037ab40 in runs/gpt"},
          {"rows",
           Json::array({Json::array({"batch", "8 = micro-batch 4 x accumulation 1 x 2 ranks"})})},
          {"m", Json::object()}};
}

// Output goes into a pipe, or to a terminal of `columns`.
class RunConsoleTest : public ::testing::Test {
 protected:
  RunConsole Make(int columns, const std::string& folder = "") {
    RunConsoleOptions options;
    options.folder = folder;
    if (columns > 0) {
      OpenTerminal(columns);
      options.console.terminal = true;
    } else {
      std::array<int, 2> ends{};
      EXPECT_EQ(pipe2(ends.data(), O_NONBLOCK), 0);
      read_.reset(ends[0]);
      write_.reset(ends[1]);
    }
    options.console.out_fd = write_.get();
    options.console.err_fd = write_.get();
    options.log_dir = "runs/gpt/logs";
    return RunConsole(options);
  }
  std::string Shown() { return ShownBy(read_.get(), write_.get()); }
  std::vector<std::string> Lines() { return absl::StrSplit(Shown(), '\n', absl::SkipEmpty()); }

 private:
  void OpenTerminal(int columns) {
    int ours = -1;
    int theirs = -1;
    termios raw{};
    cfmakeraw(&raw);  // Line ends are not translated.
    winsize size{};
    size.ws_row = 24;
    size.ws_col = static_cast<uint16_t>(columns);
    ASSERT_EQ(openpty(&ours, &theirs, nullptr, &raw, &size), 0);
    ASSERT_EQ(fcntl(ours, F_SETFL, O_NONBLOCK), 0);
    read_.reset(ours);
    write_.reset(theirs);
  }

  UniqueFd read_;
  UniqueFd write_;
};

TEST_F(RunConsoleTest, PrintsEveryLineThatIsDueInAPlainLog) {
  RunConsole console = Make(0);
  console.Take(Settings(25, 10, {"loss", "rate"}));
  for (int64_t step = 1; step <= 25; ++step) {
    console.Take(Step(step));
  }
  console.ShowProgress();
  console.LeaveProgress();
  EXPECT_THAT(Lines(), ElementsAre("step 1/25  loss 2.5000  1,234 images/s",
                                   "step 10/25  loss 2.5000  1,234 images/s",
                                   "step 20/25  loss 2.5000  1,234 images/s",
                                   "step 25/25  loss 2.5000  1,234 images/s"));
}

TEST_F(RunConsoleTest, KeepsTheIntervalWhereStepsAreNotLoggedOneByOne) {
  RunConsole console = Make(0);
  console.Take(Settings(100, 10, {"loss"}));
  for (const int64_t step : {7, 9, 12, 19, 31}) {
    console.Take(Step(step));
    console.ShowProgress();
  }
  EXPECT_THAT(Lines(), ElementsAre("step 7/100  loss 2.5000", "step 12/100  loss 2.5000",
                                   "step 31/100  loss 2.5000"));
}

TEST_F(RunConsoleTest, KeepsTheIntervalAfterTheLastStep) {  // A program with its own training loop.
  RunConsole console = Make(0);
  console.Take(Settings(25, 10, {"loss"}));
  for (int64_t step = 20; step <= 42; ++step) {
    console.Take(Step(step));
  }
  console.ShowProgress();
  EXPECT_THAT(Lines(), ElementsAre("step 20/25  loss 2.5000", "step 25/25  loss 2.5000",
                                   "step 30/25  loss 2.5000", "step 40/25  loss 2.5000"));
}

TEST_F(RunConsoleTest, SaysHowFarARunCameThatEndsBetweenTwoLines) {
  RunConsole console = Make(0);
  console.Take(Settings(100, 10, {"loss"}));
  for (int64_t step = 1; step <= 13; ++step) {
    console.Take(Step(step));
  }
  console.ShowProgress();
  console.LeaveProgress();
  EXPECT_THAT(Lines(), ElementsAre("step 1/100  loss 2.5000", "step 10/100  loss 2.5000",
                                   "step 13/100  loss 2.5000"));
}

// A batch of records, as the agent reads them ten times a second: a terminal shows the last.
TEST_F(RunConsoleTest, DrawsTheLastDueStepOfABatchOnATerminal) {
  RunConsole console = Make(80);
  console.Take(Settings(100, 10, {"loss"}));
  for (int64_t step = 1; step <= 25; ++step) {
    console.Take(Step(step));
  }
  console.ShowProgress();
  EXPECT_EQ(Shown(), "step 20/100  loss 2.5000");
  console.Take(Step(26));
  console.ShowProgress();
  EXPECT_EQ(Shown(), "");
  for (int64_t step = 27; step <= 34; ++step) {
    console.Take(Step(step));
  }
  console.ShowProgress();
  EXPECT_EQ(Shown(), "\r\x1b[Kstep 30/100  loss 2.5000");
  console.LeaveProgress();  // The run ends before the next step that is due.
  EXPECT_EQ(Shown(), "\r\x1b[Kstep 34/100  loss 2.5000\n");
}

TEST_F(RunConsoleTest, FitsTheTerminalAndLeavesRoomForControlC) {
  for (const auto& [columns, wanted] :
       {std::pair(80, "step 123,456/200,000  loss 2.5000  1,234 images/s  ETA 1:05  lr 3e-4"),
        std::pair(40, "step 123,456/200,000  loss 2.5000"), std::pair(30, "step 123,456/200,000"),
        std::pair(20, "123,456/200,000")}) {
    RunConsole console = Make(columns);
    console.Take(Settings(200'000, 1, DefaultProgressColumns()));
    console.Take(Step(123'456));
    console.ShowProgress();
    EXPECT_EQ(Shown(), wanted) << columns;
  }
}

TEST_F(RunConsoleTest, LeavesTheLastStepAboveWhatComesAfterIt) {
  for (const int columns : {0, 40}) {
    RunConsole console = Make(columns);
    console.Take(Settings(20, 10, {"loss"}));
    console.Take(Step(20));
    console.Take(Eval(20));
    console.ShowProgress();
    console.LeaveProgress();
    EXPECT_THAT(Lines(), ElementsAre("step 20/20  loss 2.5000", "step 20  eval/loss 2.2500"));
  }
}

TEST_F(RunConsoleTest, ShowsOwnMetricsThatTheConfigurationChooses) {
  RunConsole console = Make(0);
  console.Take(Settings(0, 1, {"own/accuracy", "loss", "eval/loss"}));
  console.Take(Step(1));
  console.Take(Own(1, "own/accuracy", 0.125));
  console.Take(Own(1, "own/unchosen", 7));
  console.Take(Step(2));
  console.Take(Eval(2));
  console.Take(Step(3));
  console.ShowProgress();
  EXPECT_THAT(Lines(), ElementsAre("step 1  own/accuracy 0.1250  loss 2.5000",
                                   "step 2  own/accuracy 0.1250  loss 2.5000  eval/loss 2.2500",
                                   "step 2  eval/loss 2.2500",
                                   "step 3  own/accuracy 0.1250  loss 2.5000  eval/loss 2.2500"));
}

TEST_F(RunConsoleTest, DrawsTheStepAgainWhenItsOwnMetricFollows) {
  RunConsole console = Make(80);
  console.Take(Settings(0, 10, {"own/accuracy"}));
  console.Take(Step(10));
  console.ShowProgress();
  console.Take(Own(10, "own/accuracy", 0.5));
  console.ShowProgress();
  console.Take(Step(11));
  console.Take(Own(11, "own/accuracy", 0.75));  // The line of this step is not drawn.
  console.ShowProgress();
  EXPECT_EQ(Shown(), "step 10\r\x1b[Kstep 10  own/accuracy 0.5000");
}

TEST_F(RunConsoleTest, ShowsTheBannerWithTheLogsOfTheLauncher) {
  RunConsole console = Make(40);
  console.Take(BannerRecord());
  EXPECT_THAT(Lines(), ElementsAre("dtrain 0.1.0  run 13b50037ab40 in", "  runs/gpt",
                                   "  batch  8 = micro-batch 4 x",
                                   "         accumulation 1 x 2 ranks", "  logs   runs/gpt/logs"));
}

// The launcher makes the run directory absolute for its ranks; the user wrote "runs/gpt".
TEST_F(RunConsoleTest, ShowsPathsAsTheUserSeesThem) {
  RunConsole console = Make(0, "/home/ada");
  const auto saved = [](const std::string& path) {
    return Json{{"kind", "ckpt"},
                {"step", 5},
                {"path", path},
                {"m", {{"ckpt/bytes", 1}, {"time/checkpoint_s", 1.0}}}};
  };
  Json banner = BannerRecord();
  banner["title"] = "dtrain  run 7 in /home/ada/runs/gpt";
  banner["rows"] = Json::array({Json::array({"checkpoints", "in /home/ada/runs and /home/adas"})});
  console.Take(banner);
  console.Take(saved("/home/ada/runs/gpt/checkpoints/a"));
  console.Take(saved("/mnt/home/ada/runs"));
  EXPECT_THAT(Lines(),
              ElementsAre("dtrain  run 7 in runs/gpt", "  checkpoints  in runs and /home/adas",
                          "  logs         runs/gpt/logs",
                          "saved step 5 in 1.0 s (1 B) to runs/gpt/checkpoints/a",
                          "saved step 5 in 1.0 s (1 B) to /mnt/home/ada/runs"));
}

TEST_F(RunConsoleTest, NoLineIsWiderThanTheTerminal) {
  for (const int columns : {80, 40}) {
    RunConsole console = Make(columns);
    console.Take(BannerRecord());
    console.Take(Settings(1'000'000'000, 1, DefaultProgressColumns()));
    console.Take(Step(999'999'999, 1.23456789e300));
    console.ShowProgress();
    const std::vector<std::string> lines = Lines();
    EXPECT_THAT(lines, Not(SizeIs(0)));
    for (const std::string& line : lines) {
      EXPECT_LE(line.size(), static_cast<size_t>(columns)) << line;
    }
  }
}

// After a restart steps come again; the first of them is shown whatever was before.
TEST_F(RunConsoleTest, ShowsTheFirstStepOfARestart) {
  RunConsole console = Make(0);
  console.Take(Settings(100, 10, {"loss"}));
  console.Take(Step(15));
  console.Take(Settings(100, 10, {"loss"}));
  console.Take(Step(13));
  console.ShowProgress();
  EXPECT_THAT(Lines(), ElementsAre("step 15/100  loss 2.5000", "step 13/100  loss 2.5000"));
}

TEST_F(RunConsoleTest, GoesOnWithoutSettings) {  // A program that writes records of its own.
  RunConsole console = Make(0);
  console.Take({{"kind", "config"}, {"interval", 0}, {"columns", 3}, {"train_steps", "x"}});
  console.Take({{"kind", "step"}, {"step", 4}, {"m", {{"train/loss", 1.5}}}});
  console.ShowProgress();
  EXPECT_THAT(Shown(), HasSubstr("step 4  loss 1.5000\n"));
}

}  // namespace
}  // namespace dtrain::run_console_test
