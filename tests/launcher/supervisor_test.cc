// A supervisor with one rank, and a fake in place of the other nodes.
#include "launcher/ranks/supervisor.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "launcher/ranks/process_sample.h"
#include "launcher/temp_dir.h"

namespace dtrain::launcher::supervisor_test {
namespace {

// All that a supervisor needs to run one rank, which is a command of sh.
class SupervisorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(signals_.ok()) << signals_.status();
    signals_->Take();  // Those that another test left.
    ASSERT_TRUE(guard_.ok()) << guard_.status();
    ASSERT_TRUE(socket_.ok()) << socket_.status();
    ASSERT_TRUE(reporter_.ok()) << reporter_.status();
  }
  // `arguments`: those of sh. `nodes`: of one rank each; this one is the first.
  AttemptResult Run(const std::vector<std::string>& arguments, size_t nodes, Peers& peers,
                    const SupervisorLimits& limits = {}, Survivors* survivors = nullptr) {
    Attempt attempt;
    attempt.program = "/bin/sh";
    attempt.name = "sh";
    attempt.arguments = arguments;
    attempt.shape.ranks_of_node.assign(nodes, 1);
    attempt.shape.run_dir = folder();
    attempt.shape.agent_socket = socket_->path();
    attempt.slots = {RankSlot{}};
    attempt.log_dir = folder();
    Supervisor supervisor({*signals_, *guard_, *socket_, **reporter_, peers, survivors}, limits,
                          attempt);
    return supervisor.Run();
  }
  Guard& guard() { return *guard_; }
  const std::string& folder() const { return folder_.path(); }

 private:
  const TempDir folder_ = *TempDir::Create(::testing::TempDir());
  absl::StatusOr<SignalSource> signals_ = SignalSource::Create({SIGTERM, SIGUSR1});
  absl::StatusOr<Guard> guard_ = Guard::Start(folder() + "/guarded");
  absl::StatusOr<AgentSocket> socket_ = AgentSocket::Listen(folder() + "/agent");
  absl::StatusOr<std::unique_ptr<Reporter>> reporter_ =
      Reporter::Start({.events_path = folder() + "/events.jsonl"});
};

// Other nodes that say nothing and are not lost. Keeps what they are told.
class FakePeers : public Peers {
 public:
  explicit FakePeers(int nodes = 1) : nodes_(nodes) {}
  int poll_fd() const override { return event_.get(); }
  std::vector<Order> Take() override { return {}; }
  absl::Status health() const override { return absl::OkStatus(); }
  void Publish(Order order) override { published_.push_back(std::move(order)); }
  int nodes() const override { return nodes_; }
  const std::vector<Order>& published() const { return published_; }

 private:
  UniqueFd event_{eventfd(1, EFD_CLOEXEC)};  // Always readable, so that nobody waits for it.
  const int nodes_;
  std::vector<Order> published_;
};

// Once the rank is `ready`, sends this process a stop signal at each Take, and reports a lost node
// from the third one on.
class LostWhileKilling final : public FakePeers {
 public:
  explicit LostWhileKilling(std::string ready) : FakePeers(/*nodes=*/2), ready_(std::move(ready)) {}
  std::vector<Order> Take() override {
    if (asked_ > 0 || FileExists(ready_)) {
      ++asked_;
      raise(SIGTERM);
    }
    return {};
  }
  absl::Status health() const override {
    return asked_ < 3 ? absl::OkStatus() : absl::UnavailableError("node 1 is lost");
  }

 private:
  const std::string ready_;
  int asked_ = 0;
};

TEST_F(SupervisorTest, ARankThatItKilledIsNoCauseThoughAPeerIsLostMeanwhile) {
  LostWhileKilling peers(folder() + "/ready");
  SupervisorLimits limits;
  limits.peers_end = absl::Milliseconds(100);
  const AttemptResult result = Run(
      {"-c", "trap '' TERM; : >$0/ready; while :; do sleep 0.1; done", folder()}, 2, peers, limits);
  ASSERT_EQ(result.ends.size(), 1U);
  EXPECT_EQ(result.ends[0].signal, SIGKILL);
  EXPECT_TRUE(result.ends[0].stopped);
  EXPECT_TRUE(result.stop.forced);
  EXPECT_EQ(ExitCodeOf(result), kExitTemporary);
}

// Once the rank is `ready`, tells this agent that another one got a stop signal, then sends this
// process the signals `own`, one at each Take, and at last lets the rank `go`.
class StoppedByAnother final : public FakePeers {
 public:
  StoppedByAnother(const std::string& folder, std::vector<int> own, bool job_goes_on = false)
      : ready_(folder + "/ready"),
        go_(folder + "/go"),
        own_(std::move(own)),
        job_goes_on_(job_goes_on) {}
  std::vector<Order> Take() override {
    if (!FileExists(ready_)) {
      return {};
    }
    const size_t turn = turn_++;
    if (turn == 0) {
      Order stop;
      stop.kind = Order::Kind::kStop;
      stop.node = 1;
      stop.signal = SIGTERM;
      stop.job_goes_on = job_goes_on_;
      return {stop};
    }
    if (turn <= own_.size()) {
      raise(own_[turn - 1]);
    } else {
      std::ofstream(go_).close();
    }
    return {};
  }

 private:
  const std::string ready_;
  const std::string go_;
  const std::vector<int> own_;
  const bool job_goes_on_;
  size_t turn_ = 0;
};

class StopSignalsTest : public SupervisorTest {
 protected:
  // Whether a supervisor that gets the signals `own` after another agent's one kills its rank at
  // once.
  bool KillsAfter(const std::vector<int>& own) {
    std::filesystem::remove(folder() + "/ready");
    std::filesystem::remove(folder() + "/go");
    StoppedByAnother peers(folder(), own);
    // Slurm's SIGUSR1 reaches ranks as well, and would kill this one.
    const AttemptResult result = Run({"-c",
                                      "trap : TERM; kill -USR1 $$; : >$0/ready; "
                                      "while [ ! -e $0/go ]; do sleep 0.01; done; exit 143",
                                      folder()},
                                     1, peers);
    EXPECT_EQ(result.ends.size(), 1U);
    EXPECT_EQ(ExitCodeOf(result), result.stop.forced ? kExitTemporary : kExitTerminated);
    return result.stop.forced;
  }
};

TEST_F(StopSignalsTest, ItsOwnSignalAfterAnotherAgentsIsNoSecondOne) {
  EXPECT_FALSE(KillsAfter({SIGTERM}));
  EXPECT_TRUE(KillsAfter({SIGTERM, SIGTERM}));
}

TEST_F(StopSignalsTest, TheWarningAheadOfATimeLimitLetsTheSaveEnd) {
  EXPECT_FALSE(KillsAfter({SIGUSR1, SIGUSR1, SIGTERM}));
}

// Tells of a hang that another node has found, by default on a node that is not this one.
class HangsElsewhere final : public FakePeers {
 public:
  explicit HangsElsewhere(int rank = 1) : rank_(rank) {}
  std::vector<Order> Take() override {
    if (std::exchange(told_, true)) {
      return {};
    }
    Order order;
    order.kind = Order::Kind::kFail;
    order.end.rank = rank_;
    order.end.node = rank_;
    order.end.exit_code = kExitTemporary;
    order.end.hang = "not_returned";
    order.end.error = "rank 1 does not return";
    return {order};
  }

 private:
  const int rank_;
  bool told_ = false;
};

TEST_F(SupervisorTest, AHangOnAnotherNodeEndsTheRanksHereAndLeavesAReport) {
  HangsElsewhere peers;
  const AttemptResult result = Run({"-c", "sleep 1000"}, 2, peers);
  ASSERT_EQ(result.ends.size(), 2U);
  EXPECT_EQ(result.ends[0].hang, "not_returned");
  EXPECT_TRUE(result.ends[1].stopped);
  EXPECT_EQ(ExitCodeOf(result), kExitTemporary);
  ASSERT_EQ(peers.published().size(), 1U) << "who has found it has told all";
  EXPECT_EQ(peers.published().front().kind, Order::Kind::kEnded);
  const auto report = ParseJson(ReadFile(folder() + "/report.json").value_or(""), "report.json");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ((*report)["kind"], "hang");
  EXPECT_EQ((*report)["first"]["node"], 1);
}

TEST_F(SupervisorTest, ARankThatAnotherNodeFindsHangingIsShownWithItsLog) {
  HangsElsewhere peers(/*rank=*/0);
  const AttemptResult result = Run({"-c", "sleep 1000"}, 2, peers);
  ASSERT_FALSE(result.ends.empty());
  EXPECT_EQ(result.ends[0].hang, "not_returned");
  EXPECT_EQ(result.ends[0].log, folder() + "/rank-0.err");
  ASSERT_EQ(peers.published().size(), 1U);
  EXPECT_EQ(peers.published().front().kind, Order::Kind::kEnded);
}

// Tells of a hang of `rank` once rank 0 has stopped itself, of which it leaves the pid in a file.
class HangsStopped final : public FakePeers {
 public:
  explicit HangsStopped(std::string pid_file, int rank = 0, std::string kind = "not_returned")
      : pid_file_(std::move(pid_file)), rank_(rank), kind_(std::move(kind)) {}
  std::vector<Order> Take() override {
    const int pid = std::atoi(ReadFile(pid_file_).value_or("0").c_str());
    if (told_ || pid == 0 || !SampleProcess(pid).is_stopped) {
      return {};
    }
    told_ = true;
    told_at_ = absl::Now();
    Order order;
    order.kind = Order::Kind::kFail;
    order.end.rank = rank_;
    order.end.exit_code = kExitTemporary;
    order.end.hang = kind_;
    return {order};
  }
  absl::Time told_at() const { return told_at_; }

 private:
  const std::string pid_file_;
  const int rank_;
  const std::string kind_;
  bool told_ = false;
  absl::Time told_at_;
};

// A stopped process writes no stack, and the next attempt begins the sooner without the wait.
TEST_F(SupervisorTest, AStoppedRankIsGivenNoTimeToWriteItsStackIfItIsToBeReplaced) {
  HangsStopped peers(folder() + "/pid");
  Survivors survivors(guard());
  SupervisorLimits limits;
  limits.stacks = absl::Minutes(1);
  const absl::Time begin = absl::Now();
  const AttemptResult result =
      Run({"-c", "echo $$ >$0/new; mv $0/new $0/pid; kill -STOP $$", folder()}, 1, peers, limits,
          &survivors);
  EXPECT_LT(absl::Now() - begin, limits.stacks / 2);
  ASSERT_EQ(result.ends.size(), 2U);
  EXPECT_EQ(result.ends[0].hang, "not_returned");
  EXPECT_EQ(result.ends[1].signal, SIGKILL);
  EXPECT_TRUE(result.ends[1].stopped);
}

// If this node's ranks gave up at once, they would take those of other nodes out of the collective
// before these have written where they are.
TEST_F(SupervisorTest, RanksAreGivenTimeToWriteTheirStacksWhenAllOfAllNodesHang) {
  HangsStopped peers(folder() + "/pid", /*rank=*/1, "all_stuck");
  Survivors survivors(guard());
  SupervisorLimits limits;
  limits.stacks = absl::Milliseconds(400);
  const AttemptResult result =
      Run({"-c", "echo $$ >$0/new; mv $0/new $0/pid; kill -STOP $$", folder()}, 1, peers, limits,
          &survivors);
  EXPECT_GE(absl::Now() - peers.told_at(), limits.stacks);
  EXPECT_EQ(result.ends.size(), 2U);
}

// Returns when a process of this one has ended, whose end nobody has taken yet.
void AwaitAnEnd() {
  siginfo_t info{};
  EXPECT_EQ(waitid(P_ALL, 0, &info, WEXITED | WNOWAIT), 0);
}

// The rank's last words, its end and the news of the other node become known while a supervisor
// looks for orders, behind its look for messages and ahead of that for ends.
class EndsMeanwhile final : public FakePeers {
 public:
  explicit EndsMeanwhile(absl::Status health) : lost_(std::move(health)) {}
  std::vector<Order> Take() override {
    if (std::exchange(has_ended_, true)) {
      return {};
    }
    AwaitAnEnd();
    return {};
  }
  absl::Status health() const override { return has_ended_ ? lost_ : absl::OkStatus(); }

 private:
  const absl::Status lost_;
  bool has_ended_ = false;
};

TEST_F(SupervisorTest, WhatARankSaidLastIsKnownWithItsEnd) {
  std::ofstream(folder() + "/rank.py") << R"(
import os, socket, sys
agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
agent.connect(os.environ["DTRAIN_AGENT_SOCKET"])
agent.send(b'{"kind": "error", "rank": 0, "exit_code": 64, "text": "no such file"}')
sys.exit(64)
)";
  EndsMeanwhile peers(absl::OkStatus());
  const AttemptResult result = Run({"-c", "exec python3 $0/rank.py", folder()}, 1, peers);
  ASSERT_EQ(result.ends.size(), 1U);
  EXPECT_EQ(result.ends[0].exit_code, 64);
  EXPECT_EQ(result.ends[0].error, "no such file");
}

TEST_F(SupervisorTest, ARankThatFailedBeforeAPeerWasFoundLostIsTheCauseAndTheOthersAreTold) {
  EndsMeanwhile peers(absl::UnavailableError("node 1 is lost"));
  const AttemptResult result = Run({"-c", "exit 64"}, 1, peers);
  ASSERT_EQ(result.ends.size(), 1U);
  EXPECT_FALSE(result.ends[0].stopped);
  EXPECT_EQ(ExitCodeOf(result), 64);
  ASSERT_EQ(peers.published().size(), 2U);
  EXPECT_EQ(peers.published().front().end.exit_code, 64);
  EXPECT_EQ(peers.published().back().kind, Order::Kind::kEnded);
}

// The ranks of the other nodes would wait for those that do not come.
TEST_F(SupervisorTest, ANodeThatCannotStartItsRanksTellsTheOthersWhy) {
  std::filesystem::create_directory(folder() + "/rank-0.out");  // In the place of its output.
  FakePeers peers;
  const AttemptResult result = Run({"-c", "exit 0"}, 1, peers);
  EXPECT_EQ(ExitCodeOf(result), 64);
  ASSERT_EQ(peers.published().size(), 2U);
  const Order& failed = peers.published().front();
  EXPECT_EQ(failed.kind, Order::Kind::kFail);
  EXPECT_EQ(failed.end.exit_code, 64);
  EXPECT_NE(failed.end.error.find("rank-0.out"), std::string::npos) << failed.end.error;
  EXPECT_EQ(peers.published().back().kind, Order::Kind::kEnded);
}

// The store of node 0 closes behind the news that its ranks have ended. A supervisor's third look
// finds the store closed, and the news at `turn` of its looks for orders.
class EndsWell final : public FakePeers {
 public:
  explicit EndsWell(int turn) : FakePeers(/*nodes=*/2), news_(turn) {}
  std::vector<Order> Take() override {
    if (turn_++ == 0) {
      AwaitAnEnd();
    }
    return turn_ == news_ ? std::vector<Order>{Order{.kind = Order::Kind::kEnded, .node = 1}}
                          : std::vector<Order>{};
  }
  absl::Status health() const override {
    return turn_ < 3 ? absl::OkStatus() : absl::UnavailableError("node 0 is lost");
  }

 private:
  const int news_;
  int turn_ = 0;
};

TEST_F(SupervisorTest, AStoreThatClosesWhenAllRanksHaveEndedIsNoLoss) {
  EndsWell peers(/*turn=*/3);
  const AttemptResult result = Run({"-c", "exit 0"}, 2, peers);
  EXPECT_TRUE(result.error.ok()) << result.error;
  EXPECT_EQ(ExitCodeOf(result), 0);
}

// Both arrive while a supervisor looks: its look for orders misses the news, and sees the loss.
TEST_F(SupervisorTest, AnOrderThatArrivedAheadOfALossCounts) {
  EndsWell peers(/*turn=*/4);
  const AttemptResult result = Run({"-c", "exit 0"}, 2, peers);
  EXPECT_TRUE(result.error.ok()) << result.error;
  EXPECT_EQ(ExitCodeOf(result), 0);
}

// Finds the other node lost when it tells of the end of its own ranks, and not before.
class LostAtTheEnd final : public FakePeers {
 public:
  LostAtTheEnd() : FakePeers(/*nodes=*/2) {}
  absl::Status health() const override { return lost_; }
  void Publish(Order) override { lost_ = absl::UnavailableError("node 0 is lost"); }

 private:
  absl::Status lost_;
};

TEST_F(SupervisorTest, ANodeThatIsFoundLostWhenTheRanksHereHaveEndedIsALoss) {
  LostAtTheEnd peers;
  const AttemptResult result = Run({"-c", "exit 0"}, 2, peers);
  EXPECT_EQ(result.error.message(), "node 0 is lost");
  EXPECT_EQ(ExitCodeOf(result), kExitTemporary);
}

// A rank that has saved because of a signal on another node, and asks to stay. It keeps what it is
// told in the file `told`.
constexpr char kSavedRank[] = R"(
import os, signal, socket, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
agent.connect(os.environ["DTRAIN_AGENT_SOCKET"])
for kind in ("can_stay", "stays"):
    agent.send(b'{"kind": "%s", "rank": 0, "exit_code": 143}' % kind.encode())
open(sys.argv[1] + "/ready", "w").close()
with open(sys.argv[1] + "/told", "wb") as file:
    file.write(agent.recv(1000))
sys.exit(143)
)";

class SavedRankTest : public SupervisorTest {
 protected:
  // The only end, which has code 143.
  RankEnd EndWith(Peers& peers, const SupervisorLimits& limits = {}) {
    std::ofstream(folder() + "/rank.py") << kSavedRank;
    const AttemptResult result =
        Run({"-c", "exec python3 $0/rank.py $0", folder()}, 1, peers, limits, &survivors_);
    EXPECT_EQ(ExitCodeOf(result), kExitTerminated);
    EXPECT_EQ(result.ends.size(), 1U);
    return result.ends.empty() ? RankEnd() : result.ends.front();
  }
  std::string Told() const { return ReadFile(folder() + "/told", 1000).value_or("nothing"); }

  Survivors survivors_{guard()};
};

TEST_F(SavedRankTest, StaysIfTheJobGoesOn) {
  StoppedByAnother peers(folder(), {}, /*job_goes_on=*/true);
  const RankEnd end = EndWith(peers);
  EXPECT_EQ(kill(end.pid, 0), 0) << "it waits";
  EXPECT_TRUE(survivors_.Take(RankSlot{.local_rank = 1}, {}) == std::nullopt);
  survivors_.RemoveAll();
  EXPECT_NE(kill(end.pid, 0), 0);
  EXPECT_NE(Told(), kEndOrder);
}

TEST_F(SavedRankTest, EndsIfTheUserStopsTheJob) {
  StoppedByAnother peers(folder(), {});
  EXPECT_NE(kill(EndWith(peers).pid, 0), 0);
  EXPECT_EQ(Told(), kEndOrder);
}

TEST_F(SavedRankTest, EndsIfNoNewsComesWhyItWasStopped) {
  StoppedByAnother peers(folder() + "/never-ready", {});
  SupervisorLimits limits;
  limits.news = absl::Milliseconds(20);
  EndWith(peers, limits);
  EXPECT_EQ(Told(), kEndOrder);
}

}  // namespace
}  // namespace dtrain::launcher::supervisor_test
