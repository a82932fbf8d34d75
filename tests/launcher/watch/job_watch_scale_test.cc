// The watches of 2,048 nodes, whose summaries go up the tree: node 0 names the right rank.
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/nodes/node_tree.h"
#include "launcher/ranks/job_watch.h"
#include "launcher/temp_dir.h"

namespace dtrain::launcher::job_watch_scale_test {
namespace {

using ::testing::HasSubstr;

constexpr int kNodes = 2048;
constexpr int64_t kSecond = 1'000'000'000;

class TreePeers final : public Peers {
 public:
  int poll_fd() const override { return -1; }
  std::vector<Order> Take() override { return {}; }
  absl::Status health() const override { return absl::OkStatus(); }
  void Publish(Order) override {}
  int nodes() const override { return kNodes; }
  void Share(std::string summary) override {
    bytes_max = std::max(bytes_max, summary.size());
    shared = std::move(summary);
  }
  std::vector<std::pair<int, std::string>> TakeShared() override {
    return std::exchange(arrived, {});
  }
  std::string shared;
  size_t bytes_max = 0;
  std::vector<std::pair<int, std::string>> arrived;
};

// Node N has rank N. Steps take a second.
class JobWatchScaleTest : public ::testing::Test {
 protected:
  JobWatchScaleTest() {
    for (int node = 0; node < kNodes; ++node) {
      for (const int below : NodesBelow(node, kNodes)) {
        above_[static_cast<size_t>(below)] = static_cast<size_t>(node);
      }
      watches_.push_back(std::make_unique<JobWatch>(
          JobWatchOptions{.node = node, .world_size = kNodes, .host = absl::StrCat("host-", node)},
          peers_[static_cast<size_t>(node)], *reporter_));
    }
  }
  void TearDown() override {
    reporter_.reset();
    std::filesystem::remove_all(folder_.path());
  }
  void Beat(int rank, int64_t step, const char* phase, uint64_t entered, double busy_s = 0.05) {
    AgentMessage message;
    message.rank = rank;
    message.step = step;
    message.phase = phase;
    message.marks = 2 * static_cast<uint64_t>(step) + entered;
    message.groups = {{.group = "world",
                       .entered = entered,
                       .left = static_cast<uint64_t>(step),
                       .call = "all-reduce of 1048576 elements"}};
    message.limits = {.fixed_s = -1, .patience_s = 10, .slow_s = 600};
    message.times = {.step = step, .whole_s = 0.1, .forward_s = busy_s};
    watches_[static_cast<size_t>(rank)]->Take(message, now_);
  }
  // All nodes look once, and what they shared before arrives.
  std::optional<RankEnd> Look() {
    for (int node = kNodes - 1; node > 0; --node) {
      TreePeers& peers = peers_[static_cast<size_t>(node)];
      EXPECT_FALSE(watches_[static_cast<size_t>(node)]->Look(now_).has_value());
      if (!peers.shared.empty()) {
        peers_[above_[static_cast<size_t>(node)]].arrived.emplace_back(
            node, std::exchange(peers.shared, {}));
      }
    }
    return watches_[0]->Look(now_);
  }
  // `slow` does 20 % more work than the others.
  void TrainSteps(int64_t steps, int slow = -1) {
    for (int64_t step = 0; step < steps; ++step) {
      now_ += kSecond / 10;
      for (int rank = 0; rank < kNodes; ++rank) {
        const double noise = 1e-5 * static_cast<double>((rank * 7 + step * 3) % 11);
        Beat(rank, step, "program", static_cast<uint64_t>(step),
             (rank == slow ? 0.06 : 0.05) + noise);
      }
      if (step % 10 == 9) {
        ASSERT_FALSE(Look().has_value());
      }
    }
  }
  const TempDir folder_ = *TempDir::Create("/tmp");
  std::unique_ptr<Reporter> reporter_ =
      *Reporter::Start({.events_path = folder_.path() + "/events.jsonl"});
  std::vector<TreePeers> peers_{kNodes};
  std::vector<size_t> above_ = std::vector<size_t>(kNodes);
  std::vector<std::unique_ptr<JobWatch>> watches_;
  int64_t now_ = 100 * kSecond;
};

TEST_F(JobWatchScaleTest, NodeZeroNamesTheRankThatHangsOnANodeTwoLevelsBelow) {
  constexpr int kHung = 64 * 20 + 33;
  TrainSteps(30);
  const int64_t start = now_;
  std::optional<RankEnd> hang;
  while (!hang.has_value() && now_ < start + 20 * kSecond) {
    now_ += kSecond / 2;
    for (int rank = 0; rank < kNodes; ++rank) {
      Beat(rank, 30, rank == kHung ? "data" : "update", rank == kHung ? 30 : 31);
    }
    hang = Look();
  }
  ASSERT_TRUE(hang.has_value());
  EXPECT_EQ(hang->rank, kHung);
  EXPECT_EQ(hang->node, kHung);
  EXPECT_EQ(hang->host, absl::StrCat("host-", kHung));
  EXPECT_EQ(hang->hang, "never_entered");
  EXPECT_LE(now_ - start, 6 * kSecond) << "the limit, and two seconds for each level";
  for (const TreePeers& peers : peers_) {
    EXPECT_LE(peers.bytes_max, size_t{64} << 10) << "64 nodes in one message";
  }
}

TEST_F(JobWatchScaleTest, ARankThatIsBehindInsideACollectiveIsNamed) {
  constexpr int kBehind = 2047;
  TrainSteps(30);
  const int64_t start = now_;
  std::optional<RankEnd> hang;
  for (; !hang.has_value() && now_ < start + 40 * kSecond; now_ += kSecond) {
    for (int rank = 0; rank < kNodes; ++rank) {
      const int64_t step = rank == kBehind ? 30 : 31;
      Beat(rank, step, "update", static_cast<uint64_t>(step) + 1);
    }
    hang = Look();
  }
  ASSERT_TRUE(hang.has_value());
  EXPECT_EQ(hang->rank, kBehind);
  EXPECT_EQ(hang->hang, "not_returned");
}

TEST_F(JobWatchScaleTest, AStragglerTwoLevelsBelowIsNamedAndNobodyElse) {
  constexpr int kSlow = 64 * 9 + 5;
  TrainSteps(60, kSlow);
  reporter_->Finish(absl::Seconds(5));
  const std::string events = *ReadFile(folder_.path() + "/events.jsonl");
  EXPECT_THAT(events, HasSubstr(absl::StrCat("\"rank\":", kSlow)));
  size_t named = 0;
  for (size_t at = events.find("\"straggler\""); at != std::string::npos;
       at = events.find("\"straggler\"", at + 1)) {
    ++named;
  }
  EXPECT_EQ(named, 1U);
}

}  // namespace
}  // namespace dtrain::launcher::job_watch_scale_test
