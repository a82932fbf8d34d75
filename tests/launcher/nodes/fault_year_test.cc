// A year of the faults of 400 real servers (shared/corpus/fault-trace.json) in an elastic job: the
// coordinator's and the agents' cores decide, with the messages of a job, and time passes from
// fault to fault. The trace says when a server fails and returns, and what fails; from this follows
// how many faults hit the job, whatever the launcher does: 368 servers train, the others are
// spares, the spare that waits longest takes a lost server's place, and a server that returns is a
// spare. Servers 232 to 399 and server 0, which has the coordinator, have no fault in the trace.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/nodes/coordinator_state.h"
#include "launcher/nodes/lobby_inbox.h"
#include "tests/launcher/nodes/simulation.h"

namespace dtrain::launcher::fault_year_test {
namespace {

using simulation::kSecond;
using simulation::kTick;

constexpr int kServers = 400;
constexpr int kServersMax = 368;
constexpr int kServersMin = 360;
constexpr int kRanksOfServer = 8;
constexpr int kWholeAgentEvery = 16;  // The others do as its core says, which saves time.
constexpr double kDaySeconds = 86'400;
constexpr double kDurableEverySeconds = 600;  // Training time between two checkpoints.
constexpr double kRecoverySeconds = 15;       // At most, for a fault to be over.

// Facts of the trace and of the rules above, counted by a script that knows nothing of this code.
constexpr int kFaults = 582;  // The trace has 584; two begin while their server is out already.
constexpr int kHits = 381;    // Faults of servers that train.
constexpr int kDrains = 14 + 162;    // Hits that are planned, and those after a crash.
constexpr int kInterruptions = 329;  // Moments with a hit that was not planned.

// How a fault shows to the launcher.
enum class Sign {
  kPlanned,  // An operator drains the server.
  kCrash,    // A rank is killed by a signal. The job goes on, and then the server is drained.
  kNetwork,  // All ranks lose a peer (75), and the server leaves.
  kSilence,  // Nothing is heard of the server any more.
  kGone,     // Its connections end.
};

struct Fault {
  double day = 0;
  bool is_start = true;
  int server = 0;
  Sign sign = Sign::kGone;
};

Sign SignOf(const Json& type) {
  const std::string kind = type.at("Class");
  const std::string what = type.at("Desc");
  if (kind == "Change" || kind == "Test" || kind == "Training Task Troubleshooting") {
    return Sign::kPlanned;
  }
  if (kind == "GPU" || kind == "CPU" || kind == "Stress Test Failure") {
    return Sign::kCrash;
  }
  if (kind == "NIC" || kind == "Parameter Plane Cable") {
    return Sign::kNetwork;
  }
  return kind == "Power Supply" || what == "Server down" || what == "Kernel Panic" ? Sign::kSilence
                                                                                   : Sign::kGone;
}

// Servers are numbered from 1 on as they first fail. A server has one fault at a time: one that
// begins within another, or ends before the last of them ends, is left out.
std::vector<Fault> ReadTrace(const std::string& path) {
  const auto text = ReadFile(path);
  const auto json = text.ok() ? ParseJson(*text, path) : absl::StatusOr<Json>(text.status());
  EXPECT_TRUE(json.ok()) << json.status();
  std::vector<Fault> faults;
  std::map<std::string, int> numbers;
  std::map<int, int> open;
  for (const Json& event : json.ok() ? *json : Json::array()) {
    const int number = numbers.emplace(event.at("node_id"), numbers.size() + 1).first->second;
    const bool is_start = event.at("event_type") == "fault_start";
    const int before = open[number];
    open[number] += is_start ? 1 : -1;
    if (is_start ? before == 0 : before == 1) {
      faults.push_back({event.at("event_time"), is_start, number, SignOf(event.at("fault_type"))});
    }
  }
  return faults;
}

class Year {
 public:
  Year() : coordinator_(Options(), absl::Milliseconds(900), 0) {
    for (int server = 0; server < kServers; ++server) {
      Join(server);
    }
    Settle();
  }

  void Play(const std::vector<Fault>& faults) {
    for (size_t at = 0; at < faults.size() && end_ == std::nullopt;) {
      const auto time = static_cast<int64_t>(faults[at].day * kDaySeconds * 1e9);
      PassTo(time);
      size_t next = at;
      while (next < faults.size() && faults[next].day == faults[at].day) {
        ++next;
      }
      Happen({faults.begin() + static_cast<ptrdiff_t>(at),
              faults.begin() + static_cast<ptrdiff_t>(next)});
      at = next;
    }
  }
  // A rank of the first server ends by an error of the user's.
  void FailByUser() {
    RankEnd cause;
    cause.exit_code = 1;
    EndAttempt({.code = 1, .cause = cause}, {});
    Settle();
  }

  int attempts() const { return attempt_ + 1; }
  int hits() const { return hits_; }
  int drained() const { return drained_; }
  int spares_used() const { return spares_used_; }
  int world() const { return static_cast<int>(world_.size()); }
  int interruptions() const { return interruptions_; }
  double lost_s() const { return lost_s_; }
  double slowest_recovery_s() const { return slowest_recovery_s_; }
  double goodput() const { return progress_s_ / (static_cast<double>(now_) * 1e-9); }
  const std::optional<std::pair<int, std::string>>& end() const { return end_; }

 private:
  struct Agent {
    std::string name;
    int server = 0;
    int running = -1;
    std::unique_ptr<LobbyInbox> inbox;  // Every kWholeAgentEvery-th has one.
  };

  static ElasticOptions Options() {
    ElasticOptions options{.nodes_min = kServersMin, .nodes_max = kServersMax};
    options.restarts_max = 1000;
    return options;
  }
  static std::string HostOf(int server) { return absl::StrCat("s", server); }

  void Join(int server) {
    Agent agent{.name = absl::StrCat("a", next_name_++), .server = server};
    if (server % kWholeAgentEvery == 0) {
      agent.inbox = std::make_unique<LobbyInbox>(agent.name, std::nullopt);
    }
    Post({.kind = LobbyMessage::Kind::kJoin,
          .from = agent.name,
          .node = {server, HostOf(server), kRanksOfServer}});
    agents_[server] = std::move(agent);
    due_.insert(now_ + absl::ToInt64Nanoseconds(Options().last_call) + kSecond);
  }
  void Post(const LobbyMessage& message) {
    const auto read = LobbyMessage::Parse(message.Encode());
    ASSERT_TRUE(read.ok()) << read.status();
    coordinator_.Take(*read, now_);
  }

  // Lets the time pass, and what is due in it happen.
  void PassTo(int64_t time) {
    while (!due_.empty() && *due_.begin() < time) {
      Train(*due_.begin());
      due_.erase(due_.begin());
      Settle();
    }
    Train(std::max(time, now_));
  }
  void Train(int64_t until) {
    if (until <= now_) {
      return;
    }
    if (trains_) {
      progress_s_ += static_cast<double>(until - now_) * 1e-9;
    }
    now_ = until;
  }
  double Durable() const {
    const double since = std::floor((progress_s_ - durable_s_) / kDurableEverySeconds);
    return durable_s_ + since * kDurableEverySeconds;
  }

  // All agents of the attempt report its end: `mine` those of `servers`, and node 0 if there are
  // none; the others are told to end, or lose a peer.
  void EndAttempt(const NodeReport& mine, const std::set<int>& servers) {
    const bool is_saved = mine.stop_signal != 0;
    if (trains_) {
      trains_ = false;
      stopped_at_ = now_;
      durable_s_ = is_saved ? progress_s_ : Durable();
      lost_s_ += progress_s_ - durable_s_;
      progress_s_ = durable_s_;
      interruptions_ += is_saved ? 0 : 1;
    }
    // In the reverse order of the world, which is no other order than that of a network.
    for (auto server = world_.rbegin(); server != world_.rend(); ++server) {
      const auto agent = agents_.find(*server);
      if (agent == agents_.end() || agent->second.running != attempt_) {
        continue;
      }
      const bool is_cause = servers.empty() ? *server == 0 : servers.count(*server) > 0;
      NodeReport report = is_cause || is_saved ? mine : NodeReport{.code = 75};
      if (report.cause.has_value()) {
        report.cause->rank = *server * kRanksOfServer;
        report.cause->node = *server;
        report.cause->host = HostOf(*server);
      }
      report.attempt = attempt_;
      report.durable_step = *server == 0 ? static_cast<int64_t>(durable_s_) : -1;
      agent->second.running = -1;
      const LobbyMessage message{
          .kind = LobbyMessage::Kind::kReport, .from = agent->second.name, .report = report};
      if (agent->second.inbox != nullptr) {
        agent->second.inbox->NoteReport(report);
        Post(message);
      } else {
        coordinator_.Take(message, now_);
      }
    }
  }

  // Plays all faults that begin or end at one moment.
  void Happen(const std::vector<Fault>& faults) {
    std::map<Sign, std::set<int>> starts;
    for (const Fault& fault : faults) {
      if (fault.is_start) {
        hits_ += Trains(fault.server) ? 1 : 0;
        starts[fault.sign].insert(fault.server);
      }
    }
    Crash(starts[Sign::kCrash], {.signal = SIGBUS});
    Crash(starts[Sign::kNetwork], {.exit_code = 75});
    for (const int server : starts[Sign::kNetwork]) {
      gone_.push_back(Remove(server));
      Post({.kind = LobbyMessage::Kind::kLeave, .from = gone_.back()});
    }
    for (const int server : starts[Sign::kGone]) {
      gone_.push_back(Remove(server));
    }
    TakeGone();
    for (const int server : starts[Sign::kSilence]) {
      Remove(server);
    }
    if (!starts[Sign::kSilence].empty()) {
      AwaitSilence();
    }
    Settle();
    for (const Sign sign : {Sign::kPlanned, Sign::kCrash}) {
      for (const int server : starts[sign]) {
        Drain(server);
        Settle();
      }
    }
    for (const Fault& fault : faults) {
      if (!fault.is_start) {
        Join(fault.server);
      }
    }
    Settle();
  }
  bool Trains(int server) const { return std::count(world_.begin(), world_.end(), server) > 0; }
  std::string Remove(int server) {
    const std::string name = agents_.at(server).name;
    agents_.erase(server);
    return name;
  }
  // A rank of each of the servers ends so. A spare has no rank.
  void Crash(const std::set<int>& servers, const RankEnd& cause) {
    std::set<int> training;
    std::copy_if(servers.begin(), servers.end(), std::inserter(training, training.end()),
                 [this](int server) { return Trains(server); });
    if (!training.empty()) {
      EndAttempt({.code = CodeOf(cause), .cause = cause}, training);
    }
  }
  // The connections of agents that have left, or were killed, end.
  void TakeGone() {
    coordinator_.TakeLosses({}, std::exchange(gone_, {}), now_, absl::ZeroDuration());
  }
  void Drain(int server) {
    drained_ += Trains(server) ? 1 : 0;
    Post({.kind = LobbyMessage::Kind::kDrain,
          .from = agents_.at(0).name,
          .target = absl::StrCat(server)});
  }
  void AwaitSilence() {
    std::set<std::string> heard;
    for (const auto& [server, agent] : agents_) {
      heard.insert(agent.name);
    }
    for (int tick = 0; tick < 6; ++tick) {
      now_ += 2 * kTick;  // The other ranks wait for those that are lost.
      coordinator_.TakeLosses(heard, {}, now_, absl::Nanoseconds(2 * kTick));
    }
  }

  // Ticks until the coordinator has nothing to do for a while.
  void Settle() {
    for (int calm = 0; calm < 2 && end_ == std::nullopt; ++calm) {
      TakeGone();
      coordinator_.Tick(now_);
      for (const LobbyOrder& order : coordinator_.TakeOrders()) {
        Obey(order);
        calm = -1;
      }
      calm = trains_ ? calm : -1;
      Train(now_ + kTick);
      ASSERT_TRUE(trains_ || now_ - stopped_at_ < 600 * kSecond) << "the job does not go on";
    }
  }

  void Obey(const LobbyOrder& sent) {
    const auto order = LobbyOrder::Parse(sent.Encode());
    ASSERT_TRUE(order.ok()) << order.status();
    for (auto& [server, agent] : agents_) {
      if (agent.inbox != nullptr) {
        agent.inbox->Take(*order);
      }
    }
    switch (order->kind) {
      case LobbyOrder::Kind::kStart:
        return Begin(*order);
      case LobbyOrder::Kind::kStop:
        return Stop(*order);
      case LobbyOrder::Kind::kDismiss:
        return Dismiss(*order);
      case LobbyOrder::Kind::kEnd:
        end_ = {order->code, order->text};
        return;
      case LobbyOrder::Kind::kAnswer:
        EXPECT_EQ(order->code, 0) << order->text;
        return;
      case LobbyOrder::Kind::kPark:
      case LobbyOrder::Kind::kGiveUp:
        return;
    }
  }

  void Begin(const LobbyOrder& order) {
    EXPECT_GT(order.attempt, attempt_);
    attempt_ = order.attempt;
    const std::set<int> before(world_.begin(), world_.end());
    world_.clear();
    for (const ElasticNode& node : order.nodes) {
      world_.push_back(node.number);
      spares_used_ += before.empty() || before.count(node.number) > 0 ? 0 : 1;
    }
    ASSERT_LE(world(), kServersMax);
    ASSERT_GE(world(), kServersMin);
    for (size_t at = 0; at < order.names.size(); ++at) {
      const auto agent = agents_.find(world_[at]);
      // One that is lost in this moment is named too, and the attempt ends at once.
      if (agent == agents_.end() || agent->second.name != order.names[at]) {
        continue;
      }
      EXPECT_EQ(agent->second.running, -1) << agent->second.name;
      agent->second.running = attempt_;
    }
    for (auto& [server, agent] : agents_) {
      CheckInbox(agent);
    }
    trains_ = true;
    if (stopped_at_ > 0) {
      slowest_recovery_s_ =
          std::max(slowest_recovery_s_, static_cast<double>(now_ - stopped_at_) * 1e-9);
    }
  }
  // The agent's core says the same.
  void CheckInbox(Agent& agent) const {
    if (agent.inbox == nullptr) {
      return;
    }
    std::optional<LobbyOrder> next = agent.inbox->Next();
    while (next.has_value() && next->kind == LobbyOrder::Kind::kPark) {
      next = agent.inbox->Next();
    }
    ASSERT_EQ(next.has_value(), agent.running == attempt_) << agent.name;
    if (next.has_value()) {
      EXPECT_EQ(next->kind, LobbyOrder::Kind::kStart);
      EXPECT_EQ(next->attempt, attempt_);
    }
    EXPECT_FALSE(agent.inbox->TakeStop(attempt_).has_value()) << agent.name;
  }
  void Stop(const LobbyOrder& order) {
    if (order.attempt != attempt_ || !trains_) {
      return;
    }
    for (const auto& [server, agent] : agents_) {
      if (agent.inbox != nullptr && agent.running == attempt_) {
        EXPECT_TRUE(agent.inbox->TakeStop(attempt_).has_value()) << agent.name;
      }
    }
    EndAttempt(
        order.save ? NodeReport{.code = 143, .stop_signal = SIGTERM} : NodeReport{.code = 75}, {});
  }
  void Dismiss(const LobbyOrder& order) {
    for (auto agent = agents_.begin(); agent != agents_.end();) {
      if (std::count(order.names.begin(), order.names.end(), agent->second.name) > 0) {
        gone_.push_back(agent->second.name);
        agent = agents_.erase(agent);
      } else {
        ++agent;
      }
    }
  }

  CoordinatorState coordinator_;
  std::map<int, Agent> agents_;  // By server; those that live.
  std::vector<std::string> gone_;
  int64_t now_ = 0;
  std::set<int64_t> due_;   // When a job that could grow does.
  std::vector<int> world_;  // Servers, by node rank.
  int attempt_ = -1;
  bool trains_ = false;
  int64_t stopped_at_ = 0;
  double progress_s_ = 0;  // Time of training that was not lost.
  double durable_s_ = 0;
  double lost_s_ = 0;
  double slowest_recovery_s_ = 0;
  int hits_ = 0;
  int drained_ = 0;
  int interruptions_ = 0;
  int spares_used_ = 0;
  int next_name_ = 0;
  std::optional<std::pair<int, std::string>> end_;
};

class FaultYear : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!FileExists(path_)) {
      GTEST_SKIP() << "DID NOT RUN: there is no " << path_;
    }
  }
  const std::string path_ = std::string(DTRAIN_SHARED) + "/corpus/fault-trace.json";
};

TEST_F(FaultYear, TheJobOutlivesEveryFaultAndEndsByTheUsersErrorAlone) {
  const std::vector<Fault> faults = ReadTrace(path_);
  const auto starts = std::count_if(faults.begin(), faults.end(),
                                    [](const Fault& fault) { return fault.is_start; });
  ASSERT_EQ(starts, kFaults);
  Year year;
  year.Play(faults);
  ASSERT_EQ(year.end(), std::nullopt) << year.end()->first << ": " << year.end()->second;
  std::printf(
      "%d faults in %.0f days: %d hit the job, %d drains; %d interruptions, %d attempts, "
      "%d spares used, slowest recovery %.1f s, %.0f s of work done twice, goodput %.4f\n",
      kFaults, faults.back().day, year.hits(), year.drained(), year.interruptions(),
      year.attempts(), year.spares_used(), year.slowest_recovery_s(), year.lost_s(),
      year.goodput());
  EXPECT_EQ(year.hits(), kHits);
  EXPECT_EQ(year.drained(), kDrains);
  EXPECT_EQ(year.interruptions(), kInterruptions);
  EXPECT_EQ(year.spares_used(), kHits);
  EXPECT_EQ(year.world(), kServersMax);
  EXPECT_LE(year.slowest_recovery_s(), kRecoverySeconds);
  // Each interruption costs at most the time since a checkpoint and the recovery.
  const double seconds = faults.back().day * kDaySeconds;
  EXPECT_GE(year.goodput(),
            1 - kInterruptions * (kDurableEverySeconds + kRecoverySeconds) / seconds);
  year.FailByUser();
  ASSERT_NE(year.end(), std::nullopt) << "a user's error is not restarted";
  EXPECT_EQ(year.end()->first, 1);
}

}  // namespace
}  // namespace dtrain::launcher::fault_year_test
