#include "launcher/console.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>

#include "base/unique_fd.h"
#include "gtest/gtest.h"

namespace dtrain::launcher {
namespace {

class ConsoleTest : public ::testing::Test {
 protected:
  ConsoleTest() {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_NONBLOCK), 0);
    read_.reset(ends[0]);
    write_.reset(ends[1]);
  }
  Console Make(bool terminal) {
    ConsoleOptions options;
    options.out_fd = write_.get();
    options.err_fd = write_.get();
    options.terminal = terminal;
    options.write_timeout = absl::Milliseconds(20);
    options.clock = &clock_;
    return Console(options);
  }
  std::string Shown() {
    std::string text(1 << 20, '\0');
    const ssize_t n = read(read_.get(), text.data(), text.size());
    text.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return text;
  }

  FakeClock clock_;
  UniqueFd read_;
  UniqueFd write_;
};

TEST_F(ConsoleTest, RewritesTheProgressLineOnATerminal) {
  Console console = Make(true);
  console.Progress("step 1");
  console.Progress("step 2");
  console.Out("eval");
  console.Refresh();
  console.LeaveProgress();
  EXPECT_EQ(Shown(), "step 1\r\x1b[Kstep 2\r\x1b[Keval\nstep 2\n");
}

TEST_F(ConsoleTest, DrawsTheProgressLineOnceAfterSeveralLinesAndNotAfterItWasLeft) {
  Console console = Make(true);
  console.Progress("step 1");
  console.Out("a");
  console.Err("b");
  console.Out("c");
  EXPECT_EQ(Shown(), "step 1\r\x1b[Ka\nb\nc\n");
  console.Refresh();
  console.Refresh();
  EXPECT_EQ(Shown(), "step 1");
  console.LeaveProgress();
  console.Out("run directory");
  console.Refresh();
  console.LeaveProgress();
  EXPECT_EQ(Shown(), "\nrun directory\n");
}

TEST_F(ConsoleTest, KeepsAProgressLineThatOtherLinesHaveReplacedWhenItIsLeft) {
  Console console = Make(true);
  console.Progress("step 1");
  console.Err("warning");
  console.LeaveProgress();
  EXPECT_EQ(Shown(), "step 1\r\x1b[Kwarning\nstep 1\n");
}

TEST_F(ConsoleTest, StartsALineOverTheEchoOfControlC) {
  Console console = Make(true);
  console.Progress("step 1");
  console.StartLine();
  EXPECT_EQ(Shown(), "step 1\n\r\x1b[K");
}

TEST_F(ConsoleTest, LeavesRoomForTheEchoOfControlC) {
  EXPECT_EQ(Make(true).progress_columns(), 77);  // A pipe has no size: 80.
  EXPECT_EQ(Make(false).progress_columns(), 0);
}

TEST_F(ConsoleTest, PrintsPlainLinesRarelyWithoutATerminalAndTheLastOneAlways) {
  Console console = Make(false);
  console.Progress("step 1");
  console.Progress("step 2");
  clock_.Advance(absl::Seconds(6));
  console.Progress("step 3");
  console.Progress("step 4");
  console.LeaveProgress();
  EXPECT_EQ(Shown(), "step 1\nstep 3\nstep 4\n");
}

TEST_F(ConsoleTest, DropsLinesWhenNobodyReads) {
  Console console = Make(false);
  const std::string line(1000, 'x');
  for (int i = 0; i < 200; ++i) {  // A pipe holds 64 KiB.
    console.Out(line);
  }
  EXPECT_GT(console.dropped(), 0U);
}

}  // namespace
}  // namespace dtrain::launcher
