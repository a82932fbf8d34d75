// What follows a collective: after it, in order, and not at all when it failed.
#include "runtime/shard/following_work.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "comm/work_state.h"

namespace dtrain::following_work_test {
namespace {

// A collective that the test ends.
class Collective final : public comm::WorkState {
 public:
  absl::Status Wait(Deadline deadline) override {
    std::unique_lock lock(mutex_);
    if (deadline.infinite()) {
      ++hurried_;
    }
    changed_.wait(lock, [this] { return done_; });
    return result_;
  }
  bool Done() const override {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  int64_t DurationNanos() const override { return 0; }
  void End(const absl::Status& result = absl::OkStatus()) {
    const std::lock_guard lock(mutex_);
    done_ = true;
    result_ = result;
    changed_.notify_all();
  }
  int hurried() const {
    const std::lock_guard lock(mutex_);
    return hurried_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  int hurried_ = 0;  // Waits that nothing else can be done in.
  absl::Status result_;
};

class FollowingWorkTest : public ::testing::Test {
 protected:
  std::shared_ptr<Collective> first_ = std::make_shared<Collective>();
  std::shared_ptr<Collective> second_ = std::make_shared<Collective>();
  std::vector<int> order_;  // Of what ran; read once it is over.
  Worker worker_{{.name = "following"}};
};

TEST_F(FollowingWorkTest, RunsOnceItsCollectiveIsDoneInTheOrderOfSubmission) {
  const comm::Work one = FollowWith(comm::Work(first_), worker_, [&] { order_.push_back(1); });
  const comm::Work two = FollowWith(comm::Work(second_), worker_, [&] { order_.push_back(2); });
  second_->End();
  EXPECT_FALSE(one.Done());
  EXPECT_FALSE(two.Done());
  EXPECT_EQ(two.Wait(Deadline::After(absl::ZeroDuration())).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(first_->hurried() + second_->hurried(), 0) << "nobody who computes waits yet";
  first_->End();
  EXPECT_TRUE(two.Wait().ok());
  EXPECT_TRUE(one.Done());
  EXPECT_EQ(order_, (std::vector<int>{1, 2}));
  EXPECT_EQ(second_->hurried(), 1);
}

TEST_F(FollowingWorkTest, DoesNothingAfterACollectiveThatFailed) {
  const comm::Work one = FollowWith(comm::Work(first_), worker_, [&] { order_.push_back(1); });
  const comm::Work two = FollowWith(comm::Work(second_), worker_, [&] { order_.push_back(2); });
  first_->End(absl::UnavailableError("rank 1 is gone"));
  second_->End();
  EXPECT_EQ(one.Wait(), absl::UnavailableError("rank 1 is gone"));
  EXPECT_TRUE(two.Wait().ok());
  EXPECT_EQ(order_, std::vector<int>{2});
}

TEST_F(FollowingWorkTest, AnExceptionEndsItWithAnError) {
  const comm::Work work =
      FollowWith(comm::Work(first_), worker_, [] { throw std::runtime_error("no memory"); });
  first_->End();
  EXPECT_EQ(work.Wait().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace dtrain::following_work_test
