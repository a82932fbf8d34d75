// Signals that stop a rank, in a process of their own each time: handlers are a process's.
#include "runtime/job/stop_signal.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "comm/flight_dumper.h"
#include "comm/flight_recorder.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::stop_signal_test {
namespace {

// How a process ends that was started with SIGHUP as `inherited`, installs the handlers, gets
// `signal` during training, and then ends with the signal that it knows of as its exit code.
int EndAfter(int signal, void (*inherited)(int)) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGHUP, inherited);
    InstallStopSignals();
    DeferStopSignals();
    raise(signal);
    _exit(ReceivedStopSignal());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(StopSignalTest, EachIsKept) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    EXPECT_EQ(EndAfter(signal, SIG_DFL), signal);
  }
}

// Schedulers warn by it before they take a node away.
TEST(StopSignalTest, Sigusr1CountsAsSigterm) { EXPECT_EQ(EndAfter(SIGUSR1, SIG_DFL), SIGTERM); }

TEST(StopSignalTest, SighupStaysIgnoredUnderNohupAndTheOthersStop) {
  EXPECT_EQ(EndAfter(SIGHUP, SIG_IGN), 0);
  EXPECT_EQ(EndAfter(SIGTERM, SIG_IGN), SIGTERM);
  EXPECT_EQ(EndAfter(SIGINT, SIG_IGN), SIGINT);
}

// How a process ends that uses up its CPU time, which is `seconds`, as EndAfter has it, and what it
// says.
int EndAtLimitOfCpuTime(rlim_t seconds, bool trains, std::string& said) {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    const rlimit limit{seconds, seconds};
    setrlimit(RLIMIT_CPU, &limit);
    InstallStopSignals();
    if (trains) {
      DeferStopSignals();
    }
    while (ReceivedStopSignal() == 0) {
    }
    _exit(ReceivedStopSignal());
  }
  close(ends[1]);
  std::array<char, 1000> text{};
  for (ssize_t got = 0; (got = read(ends[0], text.data(), text.size())) > 0;) {
    said.append(text.data(), static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Without a handler SIGXCPU kills without a line, and the hard limit does so whatever is handled.
TEST(StopSignalTest, CpuTimeThatIsUsedUpIsSaidWhileASaveCanStillEnd) {
  for (const bool trains : {true, false}) {
    std::string said;
    EXPECT_EQ(EndAtLimitOfCpuTime(2, trains, said), trains ? SIGXCPU : kExitTemporary);
    EXPECT_EQ(said.find("dtrain: the limit of CPU time, which is 2 s, is used up but for 1 s, in "
                        "which a save may end; raise it (ulimit -t)\n"),
              0U)
        << said;
  }
}

// Gives the flight record of a process that gets `signal` during training; null if it leaves none.
Json RecordAfter(int signal) {
  const testing::TempFolder folder;
  const std::string path = folder.path() + "/flight/rank-0.json";
  const pid_t child = fork();
  if (child == 0) {
    const auto recorder = comm::FlightRecorder::Create({});
    recorder->Queued({});
    auto dumper = comm::FlightDumper::Start({.path = path});
    InstallStopSignals();
    DeferStopSignals();
    raise(signal);
    dumper->reset();  // Waits until what was asked for is written.
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  const auto text = ReadFile(path);
  return text.ok() ? ParseJson(*text, path).value_or(Json()) : Json();
}

// A rank that hangs gets SIGTERM from its agent and cannot say by itself where.
TEST(StopSignalTest, SigtermLeavesAFlightRecordAndAUsersCtrlCDoesNot) {
  const Json record = RecordAfter(SIGTERM);
  ASSERT_TRUE(record.is_object());
  EXPECT_EQ(record["dtrain"]["reason"], "signal 15");
  EXPECT_EQ(record["entries"].size(), 1U);
  EXPECT_TRUE(RecordAfter(SIGINT).is_null());
  EXPECT_TRUE(RecordAfter(SIGHUP).is_null());
}

}  // namespace
}  // namespace dtrain::stop_signal_test
