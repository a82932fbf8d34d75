// Tests of the reading of /proc: processes in states that this test puts them into.
#include "launcher/ranks/process_sample.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::process_sample_test {
namespace {

class Child {
 public:
  Child() : pid_(fork()) {
    if (pid_ == 0) {
      for (;;) {
        pause();
      }
    }
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  const pid_t pid_;
};

TEST(ProcessSample, AStoppedProcessIsOneUntilItGoesOn) {
  const Child child;
  EXPECT_FALSE(SampleProcess(child.pid()).is_stopped);
  ASSERT_EQ(kill(child.pid(), SIGSTOP), 0);
  ASSERT_EQ(waitpid(child.pid(), nullptr, WUNTRACED), child.pid());
  EXPECT_TRUE(SampleProcess(child.pid()).is_stopped);
  const auto places = PlacesOfThreads(child.pid(), 10);
  ASSERT_EQ(places.size(), 1U);
  EXPECT_EQ(places[0].thread, child.pid());
  EXPECT_EQ(places[0].state, 'T');
  EXPECT_FALSE(places[0].name.empty());
  ASSERT_EQ(kill(child.pid(), SIGCONT), 0);
  ASSERT_EQ(waitpid(child.pid(), nullptr, WCONTINUED), child.pid());
  EXPECT_FALSE(SampleProcess(child.pid()).is_stopped);
}

TEST(ProcessSample, EveryThreadHasItsWaitForACpu) {
  const ProcessSample sample = SampleProcess(getpid());
  EXPECT_EQ(sample.cpu_wait_nanos.count(getpid()), 1U);
  EXPECT_FALSE(sample.is_stopped);
  EXPECT_EQ(PlacesOfThreads(getpid(), 0).size(), 0U);
}

TEST(ProcessSample, AProcessThatIsGoneGivesNothing) {
  pid_t gone = fork();
  if (gone == 0) {
    _exit(0);
  }
  ASSERT_EQ(waitpid(gone, nullptr, 0), gone);
  const ProcessSample sample = SampleProcess(gone);
  EXPECT_FALSE(sample.is_stopped);
  EXPECT_TRUE(sample.cpu_wait_nanos.empty());
  EXPECT_EQ(MainThreadWaitNanos(gone), 0U);
}

}  // namespace
}  // namespace dtrain::launcher::process_sample_test
