// The process that talks for a host's launcher waits for the launcher's last output, which a
// process that stays behind holds up, and takes no core meanwhile.
#include "launcher/hosts/agent_relay.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <utility>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::agent_relay_test {
namespace {

constexpr int kLauncherCode = 3;

// The launcher: it leaves a process behind that holds its outputs, and ends.
[[noreturn]] void RunLauncher(NodePipes& pipes) {
  const int serving = pipes.EnterNode();
  if (fork() == 0) {
    close(serving);
    for (;;) {
      pause();
    }
  }
  _exit(kLauncherCode);
}

// In a process group of its own, so that the process that stays behind can be ended.
[[noreturn]] void RunRelay(int input, int output) {
  setpgid(0, 0);
  dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  auto signals = SignalSource::Create({SIGTERM});
  auto pipes = NodePipes::Create();
  if (!signals.ok() || !pipes.ok()) {
    _exit(100);
  }
  const pid_t launcher = fork();
  if (launcher == 0) {
    RunLauncher(*pipes);
  }
  pipes->LeaveNode();
  const auto code =
      AgentRelay({launcher, SIGTERM, *signals, *std::move(pipes), FrameReader("")}).Run();
  _exit(code.ok() ? *code : 101);
}

TEST(AgentRelay, WaitsForTheLastOutputWithoutTakingACore) {
  std::array<int, 2> input{};
  std::array<int, 2> output{};
  ASSERT_EQ(pipe(input.data()), 0);
  ASSERT_EQ(pipe(output.data()), 0);
  const pid_t relay = fork();
  if (relay == 0) {
    RunRelay(input[0], output[1]);
  }
  rusage usage{};
  int status = 0;
  int turns = 0;
  // The starter says something now and then, which nobody reads once the launcher has ended.
  for (; wait4(relay, &status, WNOHANG, &usage) == 0 && turns < 1200; ++turns) {
    if (turns % 10 == 0) {
      EXPECT_EQ(write(input[1], "x", 1), 1);
    }
    poll(nullptr, 0, 50);
  }
  kill(-relay, SIGKILL);
  EXPECT_TRUE(WIFEXITED(status)) << "after " << turns << " turns of 50 ms";
  EXPECT_EQ(WEXITSTATUS(status), kLauncherCode);
  const absl::Duration cpu =
      absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
  EXPECT_LT(cpu, absl::Milliseconds(500));
  for (const int fd : {input[0], input[1], output[0], output[1]}) {
    close(fd);
  }
}

}  // namespace
}  // namespace dtrain::launcher::agent_relay_test
