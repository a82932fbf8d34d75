// One thread, closures in order, exceptions kept as a status.
#include "base/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace dtrain {
namespace {

using testing::HasSubstr;

// Opened once by the test, passed by a closure: no sleeping.
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

}  // namespace
}  // namespace dtrain
