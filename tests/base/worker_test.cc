// Worker runs closures in order on one thread and keeps exceptions as a status; threads request the
// intended scheduling.
#include "base/threads/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace dtrain::worker_test {
namespace {

using testing::HasSubstr;

// A closure waits here until the test opens the gate, so that no test sleeps.
class Gate {
 public:
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

TEST(Worker, RunsClosuresInOrderAndFinishesThemBeforeItEnds) {
  std::vector<int> order;
  {
    Worker worker({.name = "order"});
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE(worker.Submit([&order, i] { order.push_back(i); }));
    }
  }
  ASSERT_EQ(order.size(), 50U);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(order[static_cast<size_t>(i)], i);
  }
}

TEST(Worker, RefusesWorkThatFindsNoRoomInTime) {
  Gate started;
  Gate gate;
  Worker worker({.name = "full", .queue_capacity = 1});
  EXPECT_TRUE(worker.Submit([&] {
    started.Open();
    gate.Pass();
  }));
  started.Pass();
  EXPECT_TRUE(worker.Submit([] {}));  // Waits in the queue.
  EXPECT_FALSE(worker.Submit([] {}, Deadline::After(absl::Milliseconds(20))));
  gate.Open();
}

TEST(Worker, KeepsTheFirstExceptionAndGoesOn) {
  Gate done;
  Worker worker({.name = "writer"});
  EXPECT_TRUE(worker.Submit([] { throw std::runtime_error("first"); }));
  EXPECT_TRUE(worker.Submit([] { throw std::runtime_error("second"); }));
  EXPECT_TRUE(worker.Submit([&done] { done.Open(); }));
  done.Pass();
  EXPECT_EQ(worker.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(worker.status().message()), HasSubstr("writer: first"));
}

TEST(Worker, NamesItsThreadAndLowersItsPriorityWhenAsked) {
  char name[16] = {};
  int policy = -1;
  {
    Worker worker({.name = "a-name-longer-than-fifteen", .low_priority = true});
    EXPECT_TRUE(worker.Submit([&] {
      pthread_getname_np(pthread_self(), name, sizeof(name));
      policy = sched_getscheduler(0);
    }));
  }
  EXPECT_STREQ(name, "a-name-longer-t");
  EXPECT_EQ(policy, SCHED_BATCH);
}

// How the calling thread is scheduled. `slice_nanos`: 0 if the kernel does not report it (before
// Linux 6.12, or if the call is not allowed).
struct Scheduling {
  int policy = sched_getscheduler(0);
  int nice = getpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)));
  uint64_t slice_nanos = [] {
    std::array<uint64_t, 6> attributes{};  // sched_attr; runtime is its fourth word.
    const long result = syscall(SYS_sched_getattr, 0, attributes.data(), sizeof(attributes), 0U);
    return result == 0 ? attributes[3] : 0;
  }();
};

// Before and after TakeShortTurns, on a thread of its own that has `policy` and `nice`.
std::array<Scheduling, 2> AroundShortTurns(int policy, int nice) {
  std::array<Scheduling, 2> around;
  std::thread([&] {
    const sched_param parameters{};
    EXPECT_EQ(sched_setscheduler(0, policy, &parameters), 0);
    EXPECT_EQ(setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), nice), 0);
    around[0] = Scheduling();
    TakeShortTurns();
    around[1] = Scheduling();
  }).join();
  return around;
}

TEST(TakeShortTurns, KeepsAnOrdinaryThreadsPolicyAndNice) {
  for (const int nice : {Scheduling().nice, 19}) {  // Every user may set 19.
    const auto [before, after] = AroundShortTurns(SCHED_OTHER, nice);
    EXPECT_EQ(after.policy, SCHED_OTHER);
    EXPECT_EQ(after.nice, nice);
    if (before.slice_nanos > 0) {
      EXPECT_EQ(after.slice_nanos, 100'000U);
    }
  }
}

TEST(TakeShortTurns, LeavesAPolicyThatWasChosenAlone) {
  for (const int policy : {SCHED_BATCH, SCHED_IDLE}) {
    const auto [before, after] = AroundShortTurns(policy, 19);
    EXPECT_EQ(after.policy, policy);
    EXPECT_EQ(after.nice, before.nice);
    EXPECT_EQ(after.slice_nanos, before.slice_nanos);
  }
}

}  // namespace
}  // namespace dtrain::worker_test
