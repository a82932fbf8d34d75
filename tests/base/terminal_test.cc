#include "base/console/terminal.h"

#include <pty.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "base/job_env.h"
#include "base/unique_fd.h"
#include "gtest/gtest.h"

namespace dtrain::terminal_test {
namespace {

TEST(IsTerminal, IsFalseForDumbTerminalsAndForPipes) {
  const Environment before = ReadEnvironment();
  int ours = -1;
  int theirs = -1;
  ASSERT_EQ(openpty(&ours, &theirs, nullptr, nullptr, nullptr), 0);
  const UniqueFd reader(ours);
  const UniqueFd terminal(theirs);
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const UniqueFd pipe_out(ends[0]);
  const UniqueFd pipe_in(ends[1]);
  setenv("TERM", "xterm", 1);
  EXPECT_TRUE(IsTerminal(terminal.get()));
  EXPECT_FALSE(IsTerminal(pipe_in.get()));
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(IsTerminal(terminal.get()));
  if (const auto term = before.find("TERM"); term != before.end()) {
    setenv("TERM", term->second.c_str(), 1);
  } else {
    unsetenv("TERM");
  }
}

}  // namespace
}  // namespace dtrain::terminal_test
