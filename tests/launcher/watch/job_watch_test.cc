// Two nodes' watches over fakes in place of the store: node 0 finds what happens on the other one.
#include "launcher/ranks/job_watch.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/temp_dir.h"

namespace dtrain::launcher::job_watch_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;

class FakePeers final : public Peers {
 public:
  int poll_fd() const override { return -1; }
  std::vector<Order> Take() override { return {}; }
  absl::Status health() const override { return absl::OkStatus(); }
  void Publish(Order) override {}
  int nodes() const override { return 2; }
  void Share(std::string summary) override { shared.push_back(std::move(summary)); }
  void ShareAtOnce(std::string summary) override {
    told_at_once = summary;
    Share(std::move(summary));
  }
  std::vector<std::pair<int, std::string>> TakeShared() override {
    return std::exchange(arrived, {});
  }
  std::vector<std::string> shared;
  std::string told_at_once;  // The last one.
  std::vector<std::pair<int, std::string>> arrived;
};

// Rank 0 on node 0 and rank 1 on node 1.
class JobWatchTest : public ::testing::Test {
 protected:
  JobWatchTest() {
    for (const int node : {0, 1}) {
      watches_.push_back(std::make_unique<JobWatch>(
          JobWatchOptions{
              .node = node, .world_size = 2, .attempt = 4, .host = node == 0 ? "host-a" : "host-b"},
          peers_[node], *reporter_));
    }
  }
  void TearDown() override {
    reporter_.reset();
    std::filesystem::remove_all(folder_.path());
  }
  // The state of a rank after `step` steps of 0.1 s.
  static AgentMessage Beat(int rank, int64_t step, const char* phase, uint64_t entered) {
    AgentMessage message;
    message.rank = rank;
    message.pid = 0;  // /proc has none of that number.
    message.step = step;
    message.phase = phase;
    message.marks = static_cast<uint64_t>(step) + 1;
    message.groups = {{.group = "world",
                       .entered = entered,
                       .left = static_cast<uint64_t>(step),
                       .call = "barrier"}};
    message.limits = {.fixed_s = -1, .patience_s = 10, .slow_s = 600};
    message.times = {.step = step, .whole_s = 0.1, .forward_s = 0.05};
    return message;
  }
  // Both nodes look; node 1 tells node 0.
  std::optional<RankEnd> Look() {
    EXPECT_FALSE(watches_[1]->Look(now_).has_value()) << "node 0 decides";
    for (std::string& text : std::exchange(peers_[1].shared, {})) {
      peers_[0].arrived.emplace_back(1, std::move(text));
    }
    return watches_[0]->Look(now_);
  }
  void TrainSteps(int64_t steps) {
    for (int64_t step = 0; step < steps; ++step) {
      now_ += kSecond / 10;
      for (const int rank : {0, 1}) {
        watches_[static_cast<size_t>(rank)]->Take(
            Beat(rank, step, "program", static_cast<uint64_t>(step)), now_);
      }
      ASSERT_FALSE(Look().has_value());
    }
  }
  const TempDir folder_ = *TempDir::Create("/tmp");
  std::unique_ptr<Reporter> reporter_ =
      *Reporter::Start({.events_path = folder_.path() + "/events.jsonl"});
  FakePeers peers_[2];
  std::vector<std::unique_ptr<JobWatch>> watches_;
  int64_t now_ = 100 * kSecond;
};

TEST_F(JobWatchTest, NodeZeroKeepsWhatTheRanksOfAnotherNodeHaveLastSaid) {
  TrainSteps(20);
  now_ += 5 * kSecond;  // The other node falls silent.
  const std::vector<RankView> others = watches_[0]->OtherViews(now_);
  ASSERT_EQ(others.size(), 1U);
  EXPECT_EQ(others[0].rank, 1);
  EXPECT_GE(others[0].step, 1);
  EXPECT_GT(others[0].silent_s, 4.9);
  EXPECT_LT(others[0].silent_s, 7.5) << "it tells of them once a second";
  EXPECT_TRUE(watches_[1]->OtherViews(now_).empty());
}

TEST_F(JobWatchTest, NodeZeroNamesARankOfAnotherNodeThatHangs) {
  TrainSteps(40);
  std::optional<RankEnd> hang;
  const int64_t start = now_;
  while (!hang.has_value() && now_ < start + 10 * kSecond) {
    now_ += kSecond / 4;
    watches_[0]->Take(Beat(0, 40, "update", 41), now_);  // It waits for rank 1.
    watches_[1]->Take(Beat(1, 40, "data", 40), now_);
    hang = Look();
  }
  ASSERT_TRUE(hang.has_value());
  EXPECT_LE(now_ - start, 3 * kSecond / 2) << "it is told at once, and not in the next exchange";
  EXPECT_EQ(hang->rank, 1);
  EXPECT_EQ(hang->node, 1);
  EXPECT_EQ(hang->host, "host-b");
  EXPECT_EQ(hang->hang, "never_entered");
  EXPECT_EQ(hang->exit_code, kExitTemporary);
  EXPECT_THAT(hang->error, HasSubstr("has not entered collective 41"));
}

TEST_F(JobWatchTest, WhatAnotherNodeTellsAtOnceIsLookedAtAtOnce) {
  TrainSteps(40);
  const int64_t start = now_;
  std::string told;
  while (told.empty() && now_ < start + 10 * kSecond) {
    now_ += kSecond / 4;
    watches_[0]->Take(Beat(0, 40, "update", 41), now_);
    watches_[1]->Take(Beat(1, 40, "data", 40), now_);
    EXPECT_FALSE(watches_[0]->Look(now_).has_value());
    EXPECT_FALSE(watches_[1]->Look(now_).has_value());
    told = peers_[1].told_at_once;
  }
  EXPECT_LE(now_ - start, 3 * kSecond / 2);
  peers_[0].arrived.emplace_back(1, told);
  now_ += kSecond / 1000;
  EXPECT_FALSE(watches_[0]->Look(now_).has_value()) << "it has just looked";
  watches_[0]->LookAtOnce(now_);
  const std::optional<RankEnd> hang = watches_[0]->Look(now_);
  ASSERT_TRUE(hang.has_value());
  EXPECT_EQ(hang->rank, 1);
}

TEST_F(JobWatchTest, ARankThatOnlyWaitsForAnotherOneIsNothingToTellAtOnce) {
  TrainSteps(40);
  for (int look = 0; look < 40; ++look) {
    now_ += kSecond / 4;
    watches_[1]->Take(Beat(1, 40, "update", 41), now_);
    watches_[1]->Look(now_);
  }
  EXPECT_EQ(peers_[1].told_at_once, "");
}

TEST_F(JobWatchTest, AHangThatNodeZeroDoesNotSeeIsToldAtOnceForAWhileOnly) {
  TrainSteps(40);
  peers_[1].shared.clear();
  int told = 0;
  for (int look = 0; look < 120; ++look) {  // 30 s.
    now_ += kSecond / 4;
    peers_[1].told_at_once.clear();
    watches_[1]->Take(Beat(1, 40, "data", 40), now_);
    watches_[1]->Look(now_);
    told += peers_[1].told_at_once.empty() ? 0 : 1;
  }
  EXPECT_GE(told, 9);
  EXPECT_LE(told, 11) << "10 s, once a second";
  EXPECT_GE(peers_[1].shared.size(), 28U) << "the regular exchange goes on";
}

// A process that a signal has stopped before it did anything.
class StoppedChild {
 public:
  StoppedChild() : pid_(fork()) {
    if (pid_ == 0) {
      raise(SIGSTOP);
      for (;;) {
        pause();
      }
    }
    EXPECT_EQ(waitpid(pid_, nullptr, WUNTRACED), pid_);
  }
  ~StoppedChild() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  void GoOn() const {
    kill(pid_, SIGCONT);
    EXPECT_EQ(waitpid(pid_, nullptr, WCONTINUED), pid_);
  }

 private:
  const pid_t pid_;
};

// The only rank of a job, whose limit is a second. Its watch looks when it wants to.
class OneRankTest : public JobWatchTest {
 protected:
  void Train(int pid) {
    for (int64_t step = 0; step < 40; ++step) {
      now_ += kSecond / 10;
      AgentMessage message = Beat(0, step, "forward", static_cast<uint64_t>(step));
      message.pid = pid;
      watch_.Take(message, now_);
      ASSERT_FALSE(watch_.Look(now_).has_value());
    }
    moved_ = now_;
  }
  // Seconds from the last progress to the next look, which takes place.
  double NextLook() {
    now_ += absl::ToInt64Nanoseconds(watch_.UntilLook(now_));
    hang_ = watch_.Look(now_);
    return static_cast<double>(now_ - moved_) / kSecond;
  }
  // Seconds from the last progress to the look that finds a hang, or more than 10.
  double UntilHang() {
    double at = 0;
    while (!hang_.has_value() && at < 10) {
      at = NextLook();
    }
    return at;
  }
  NoPeers alone_;
  JobWatch watch_{{.host = "host-a"}, alone_, *reporter_};
  std::optional<RankEnd> hang_;
  int64_t moved_ = 0;
};

TEST_F(OneRankTest, ALookComesWhenTheLimitPasses) {
  Train(/*pid=*/0);
  double at = 0;
  while (!hang_.has_value() && at < 10) {
    AgentMessage message = Beat(0, 39, "forward", 39);  // It beats, and does not move.
    message.times = {};
    watch_.Take(message, now_);
    const double before = at;
    at = NextLook();
    EXPECT_LE(at - before, 0.21) << "between limits it looks for all else";
  }
  EXPECT_GT(at, 1);
  EXPECT_LE(at, 1.002);
}

TEST_F(OneRankTest, AStoppedProcessIsNamedWithinItsLimit) {
  const StoppedChild child;
  Train(child.pid());
  const double at = UntilHang();
  EXPECT_GT(at, 0.95);
  EXPECT_LE(at, 0.952);
}

TEST_F(OneRankTest, AProcessThatGoesOnJustBeforeTheVerdictHasItsWholeLimit) {
  const StoppedChild child;
  Train(child.pid());
  double at = 0;
  while (at < 0.8) {
    at = NextLook();
  }
  child.GoOn();
  EXPECT_GT(UntilHang(), 1);
}

TEST_F(JobWatchTest, WhatANodeSaidLongAgoAndOfAnotherAttemptIsNoBasis) {
  TrainSteps(40);
  NodeSummary old;
  old.attempt = 3;
  old.ranks.push_back({.rank = 1, .node = 1, .phase = "forward", .still_s = 100});
  old.ranks[0].limits = {.fixed_s = -1, .patience_s = 10, .slow_s = 600};
  for (int look = 0; look < 40; ++look) {
    now_ += kSecond / 4;
    watches_[0]->Take(Beat(0, 40, "update", 41), now_);
    peers_[0].arrived.emplace_back(1, EncodeSummary(old));
    EXPECT_FALSE(watches_[0]->Look(now_).has_value());
  }
}

TEST_F(JobWatchTest, ASlowRankOfAnotherNodeIsAnEvent) {
  for (int64_t step = 0; step < 200; ++step) {
    now_ += kSecond / 10;
    for (const int rank : {0, 1}) {
      AgentMessage message = Beat(rank, step, "program", static_cast<uint64_t>(step));
      message.times.forward_s = rank == 1 && step >= 100 ? 0.08 : 0.05;
      watches_[static_cast<size_t>(rank)]->Take(message, now_);
    }
    Look();
  }
  ASSERT_TRUE(reporter_->Finish(absl::Seconds(10)));
  const std::string events = ReadFile(folder_.path() + "/events.jsonl").value_or("");
  EXPECT_THAT(events, HasSubstr(R"("event":"straggler","rank":1)"));
  EXPECT_THAT(events, ::testing::Not(HasSubstr(R"("event":"hang")")));
}

}  // namespace
}  // namespace dtrain::launcher::job_watch_test
