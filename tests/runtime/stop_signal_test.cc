// Signals that stop a rank, in a process of their own each time: handlers are a process's.
#include "runtime/job/stop_signal.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

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

TEST(StopSignalTest, SighupStaysIgnoredUnderNohupAndTheOthersStop) {
  EXPECT_EQ(EndAfter(SIGHUP, SIG_IGN), 0);
  EXPECT_EQ(EndAfter(SIGTERM, SIG_IGN), SIGTERM);
  EXPECT_EQ(EndAfter(SIGINT, SIG_IGN), SIGINT);
}

}  // namespace
}  // namespace dtrain::stop_signal_test
