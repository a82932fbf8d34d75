#include "base/console/console.h"

#include <fcntl.h>
#include <pty.h>
#include <sys/time.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "absl/time/clock.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/console/shown_by.h"

namespace dtrain::console_test {
namespace {

using ::testing::StartsWith;

class ConsoleTest : public ::testing::Test {
 protected:
  ConsoleTest() {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_NONBLOCK), 0);
    read_.reset(ends[0]);
    write_.reset(ends[1]);
  }
  Console Make(bool terminal, bool own_log = false,
               absl::Duration write_timeout = absl::Milliseconds(20)) {
    ConsoleOptions options;
    options.own_log = own_log;
    options.out_fd = write_.get();
    options.err_fd = write_.get();
    options.terminal = terminal;
    options.write_timeout = write_timeout;
    return Console(options);
  }
  std::string Shown() {
    std::string text(1 << 20, '\0');
    const ssize_t n = read(read_.get(), text.data(), text.size());
    text.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return text;
  }

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
  EXPECT_EQ(Make(true).progress_columns(), 77);  // A pipe has no size, so 80 columns are assumed.
  EXPECT_EQ(Make(false).progress_columns(), 0);
}

TEST_F(ConsoleTest, PrintsEachProgressLineWithoutATerminalAndTheLatestAtTheEnd) {
  Console console = Make(false);
  console.Progress("step 1");
  console.LatestProgress("step 2");
  console.Progress("step 3");
  console.LatestProgress("step 4");
  console.LeaveProgress();
  console.LeaveProgress();
  EXPECT_EQ(Shown(), "step 1\nstep 3\nstep 4\n");
}

TEST_F(ConsoleTest, PrintsTheLastLineOnceWithoutATerminal) {
  Console console = Make(false);
  console.Progress("step 1");
  console.Out("eval");
  console.LeaveProgress();
  EXPECT_EQ(Shown(), "step 1\neval\n");
}

TEST_F(ConsoleTest, LeavesTheLatestStepAndNotTheOneThatWasDrawn) {
  Console console = Make(true);
  console.Progress("step 10");
  console.LatestProgress("step 13");
  console.LeaveProgress();
  EXPECT_EQ(Shown(), "step 10\r\x1b[Kstep 13\n");
}

// A warning that this process logs replaces the progress line.
TEST_F(ConsoleTest, DrawsItsLineAgainWhereTheLogOfThisProcessHasTakenItsPlace) {
  Console console = Make(true, /*own_log=*/true);
  console.Progress("step 1");
  EXPECT_TRUE(UnfinishedLine());
  SetUnfinishedLine(false);  // LogLine does this on a terminal.
  console.Refresh();
  EXPECT_TRUE(UnfinishedLine());
  EXPECT_EQ(Shown(), "step 1step 1");
  SetUnfinishedLine(false);
  console.LeaveProgress();
  console.Out("run directory");
  EXPECT_EQ(Shown(), "step 1\nrun directory\n");
}

// stderr as a terminal, for the lines that LogLine writes while it lives.
class StderrTerminal {
 public:
  StderrTerminal() {
    setenv("TERM", "xterm", 1);
    int ours = -1;
    int theirs = -1;
    termios raw{};
    cfmakeraw(&raw);  // Line ends are not translated.
    EXPECT_EQ(openpty(&ours, &theirs, nullptr, &raw, nullptr), 0);
    EXPECT_EQ(fcntl(ours, F_SETFL, O_NONBLOCK), 0);
    read_.reset(ours);
    saved_.reset(dup(STDERR_FILENO));
    dup2(theirs, STDERR_FILENO);
    close(theirs);
  }
  ~StderrTerminal() { dup2(saved_.get(), STDERR_FILENO); }
  std::string Shown() { return ShownBy(read_.get(), STDERR_FILENO); }

 private:
  UniqueFd read_;
  UniqueFd saved_;
};

TEST(LogLine, TakesThePlaceOfAProgressLineOnATerminal) {
  std::string warning;
  std::string second;
  std::string error;
  {
    StderrTerminal terminal;
    SetUnfinishedLine(true);
    LogLine(LogLevel::kWarning, "slow disk");
    warning = terminal.Shown();
    EXPECT_FALSE(UnfinishedLine());
    LogLine(LogLevel::kWarning, "slower disk");
    second = terminal.Shown();
    SetUnfinishedLine(true);
    LogLine(LogLevel::kError, "no disk");
    error = terminal.Shown();
  }
  EXPECT_THAT(warning, StartsWith("\r\x1b[K[W "));
  EXPECT_THAT(second, StartsWith("[W "));
  // The progress line stays, because it shows how far the run was.
  EXPECT_THAT(error, StartsWith("\n[E "));
}

TEST_F(ConsoleTest, LeavesTheLineAboveAnErrorAlone) {
  Console console = Make(true, /*own_log=*/true);
  const auto shown_after = [&](LogLevel level) {
    console.Progress("step 1");
    {
      StderrTerminal terminal;
      LogLine(level, "slow disk");
    }
    console.LeaveProgress();
    return Shown();
  };
  EXPECT_EQ(shown_after(LogLevel::kWarning), "step 1step 1\n") << "the warning has erased it";
  EXPECT_EQ(shown_after(LogLevel::kError), "step 1") << "the error stands below it";
}

TEST(LogLine, LeavesAProgressLineThatIsOnAnotherTerminal) {
  testing::internal::CaptureStderr();  // stderr becomes a file.
  SetUnfinishedLine(true);
  LogLine(LogLevel::kWarning, "slow disk");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), StartsWith("[W "));
  EXPECT_TRUE(UnfinishedLine());
  SetUnfinishedLine(false);
}

std::atomic<int> alarms{0};
int full_pipe = -1;

// Interrupts system calls that wait, and at the third time makes room in `full_pipe`.
void OnAlarm(int /*signal*/) {
  const int error = errno;  // Belongs to the code that the signal interrupts.
  std::array<char, 4096> buffer;
  if (++alarms == 3) {
    while (read(full_pipe, buffer.data(), buffer.size()) > 0) {
    }
  }
  errno = error;
}

TEST_F(ConsoleTest, WaitsOnForItsReaderWhenASignalArrives) {
  Console console = Make(false, false, absl::InfiniteDuration());
  const std::string filler(4096, 'x');
  while (write(write_.get(), filler.data(), filler.size()) > 0) {
  }
  full_pipe = read_.get();
  alarms = 0;
  struct sigaction handled {};
  struct sigaction before {};
  handled.sa_handler = OnAlarm;
  ASSERT_EQ(sigaction(SIGALRM, &handled, &before), 0);
  itimerval often{};
  often.it_interval.tv_usec = 2000;
  often.it_value.tv_usec = 2000;
  ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
  console.Out("saved");
  const itimerval never{};
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  EXPECT_EQ(console.dropped(), 0U);
  EXPECT_EQ(Shown(), "saved\n");
}

// A terminal that is stopped costs the agent one timeout, not one for each line.
TEST_F(ConsoleTest, WaitsOnceForAReaderThatDoesNotReadAndAgainAfterItHasRead) {
  Console console = Make(false, false, absl::Seconds(1));
  const std::string filler(4096, 'x');
  while (write(write_.get(), filler.data(), filler.size()) > 0) {
  }
  const absl::Time begin = absl::Now();
  for (int i = 0; i < 30; ++i) {
    console.Out("lost");
  }
  EXPECT_EQ(console.dropped(), 30U);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
  Shown();
  console.Out("saved");
  EXPECT_EQ(Shown(), "saved\n");
  while (write(write_.get(), filler.data(), filler.size()) > 0) {
  }
  const absl::Time again = absl::Now();
  console.Out("lost");
  EXPECT_GE(absl::Now() - again, absl::Milliseconds(900));
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
}  // namespace dtrain::console_test
