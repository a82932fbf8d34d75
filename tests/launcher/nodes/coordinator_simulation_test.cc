// The whole coordinator and its agents over simulated nodes, clock and network: messages are read
// and written as in a job, and delayed, cut off and lost with the processes that hold them. Agents
// and coordinators die and come back. Safety: a number of an attempt has one world, no two attempts
// train at once among those that hear each other, and no attempt is ended by the loss of a
// coordinator that comes back. Liveness: when the faults have ended, all nodes that fit train.
//
// DTRAIN_SIMULATION_SEED=S runs that seed alone and prints what happens in it.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "launcher/nodes/coordinator_state.h"
#include "launcher/nodes/lobby_inbox.h"
#include "tests/launcher/nodes/simulation.h"

namespace dtrain::launcher::coordinator_simulation_test {
namespace {

using simulation::Chance;
using simulation::kMillisecond;
using simulation::kSecond;
using simulation::kTick;

constexpr int64_t kFaultTime = 40 * kSecond;
constexpr int64_t kQuietTime = 50 * kSecond;
constexpr int64_t kPatience = 30 * kSecond;
constexpr int kSeeds = 1000;
constexpr int kSeedsOfLongTest = 20'000;

int64_t Setting(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  int64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

// Which faults a simulation has besides losses of nodes.
enum class Faults { kAll, kCoordinatorsOnly };

class Simulation {
 public:
  Simulation(uint64_t seed, Faults faults, bool is_told)
      : chance_(seed), faults_(faults), is_told_(is_told), options_(MakeOptions()) {
    nodes_.resize(static_cast<size_t>(options_.nodes_max + Below(3)));
    StartCoordinator(/*is_successor=*/false);
    for (size_t number = 0; number < nodes_.size(); ++number) {
      StartAgent(number, {});
    }
  }

  void Run() {
    for (; now_ < kFaultTime + kQuietTime && !::testing::Test::HasFailure(); now_ += kTick) {
      if (now_ < kFaultTime) {
        MakeTrouble();
      } else {
        Restore();
      }
      for (size_t number = 0; number < nodes_.size(); ++number) {
        Advance(number);
      }
      AdvanceCoordinator();
    }
    CheckAllTrain();
  }
  int attempts() const { return newest_ + 1; }
  int terms() const { return static_cast<int>(term_); }

 private:
  struct Agent {
    std::string name;
    std::unique_ptr<LobbyInbox> inbox;
    int64_t term = 0;       // The coordinator that it follows; 0: it has not joined one.
    size_t next_order = 0;  // The next one of that coordinator's.
    int64_t lost_at = 0;    // When it lost its coordinator; 0: it has one.
    bool is_cut = false;    // Nothing goes from or to it.
    int running = -1;       // The attempt of its ranks.
  };
  struct Node {
    std::unique_ptr<Agent> agent;  // Null: the node is down.
  };
  struct Letter {
    int64_t at = 0;
    std::string text;
  };

  int Below(int bound) { return chance_.Below(bound); }
  bool Rarely(int one_in) { return chance_.Rarely(one_in); }
  bool has_nodes_faults() const { return faults_ == Faults::kAll; }
  void Tell(const std::string& text) const {
    if (is_told_) {
      std::printf("%8.1f s  %s\n", static_cast<double>(now_) * 1e-9, text.c_str());
    }
  }

  ElasticOptions MakeOptions() {
    return simulation::JobOf(chance_, 2 + (Rarely(40) ? Below(61) : Below(7)));
  }

  void StartCoordinator(bool is_successor) {
    ElasticOptions options = options_;
    options.is_successor = is_successor;
    ++term_;
    coordinator_ = std::make_unique<CoordinatorState>(options, absl::Milliseconds(900), now_);
    orders_.clear();
    inbox_.clear();
    gone_.clear();
    Tell(absl::StrCat("coordinator ", term_, " starts"));
  }
  void KillCoordinator() {
    Tell(absl::StrCat("coordinator ", term_, " dies"));
    coordinator_.reset();
    coordinator_at_ = now_ + Below(8) * kSecond;
  }

  void StartAgent(size_t number, std::optional<AttemptMemory> memory) {
    Agent agent;
    agent.name = absl::StrCat("node ", number, " #", next_name_++);
    agent.inbox = std::make_unique<LobbyInbox>(agent.name, std::move(memory));
    nodes_[number].agent = std::make_unique<Agent>(std::move(agent));
  }
  // Its connection ends with it, and its ranks die.
  void KillAgent(size_t number) {
    Agent& agent = *nodes_[number].agent;
    Tell(absl::StrCat(agent.name, " dies in attempt ", agent.running));
    if (!agent.is_cut) {
      gone_.push_back(agent.name);
    }
    nodes_[number].agent.reset();
  }

  void Send(const Agent& agent, LobbyMessage message) {
    message.from = agent.name;
    if (coordinator_ != nullptr && agent.term == term_ && !agent.is_cut) {
      inbox_.push_back({now_ + Below(60) * kMillisecond, message.Encode()});
    }
  }
  void Join(size_t number) {
    Agent& agent = *nodes_[number].agent;
    agent.term = term_;
    agent.lost_at = 0;
    // One whose ranks run reads all orders; a new one those that are to come.
    agent.next_order = agent.running >= 0 ? 0 : orders_.size();
    Send(agent, {.kind = LobbyMessage::Kind::kJoin,
                 .node = {static_cast<int>(number), "h", 1},
                 .memory = agent.inbox->memory()});
  }
  void EndAttempt(Agent& agent, NodeReport report) {
    report.attempt = agent.running;
    report.durable_step = ++step_;  // Without progress a job may end with 93.
    agent.running = -1;
    agent.inbox->NoteReport(report);
    Send(agent, {.kind = LobbyMessage::Kind::kReport, .report = report});
  }

  void MakeTrouble() {
    if (coordinator_ != nullptr && Rarely(120)) {
      KillCoordinator();
    }
    for (size_t number = 0; has_nodes_faults() && number < nodes_.size(); ++number) {
      Agent* const agent = nodes_[number].agent.get();
      if (agent == nullptr) {
        if (Rarely(40)) {
          StartAgent(number, {});
        }
      } else if (number > 0 && Rarely(400)) {
        KillAgent(number);
      } else if (number > 0 && Rarely(500)) {
        agent->is_cut = true;
      } else if (agent->is_cut && Rarely(20)) {
        Heal(number);
      } else if (!agent->is_cut && agent->running >= 0 && Rarely(400)) {
        EndAttempt(*agent, {.code = 137, .cause = RankEnd{.signal = SIGKILL}});
      } else if (!agent->is_cut && agent->term == term_ && Rarely(600)) {
        Send(*agent, {.kind = LobbyMessage::Kind::kDrain,
                      .target = absl::StrCat(Below(static_cast<int>(nodes_.size())))});
      }
    }
  }
  // The network lets through again what was written.
  void Heal(size_t number) { nodes_[number].agent->is_cut = false; }
  void Restore() {
    for (size_t number = 0; number < nodes_.size(); ++number) {
      if (nodes_[number].agent == nullptr) {
        StartAgent(number, {});
      }
      Heal(number);
    }
  }

  void Advance(size_t number) {
    Agent* agent = nodes_[number].agent.get();
    if (agent == nullptr || agent->is_cut) {
      return;
    }
    const bool has_coordinator = coordinator_ != nullptr && agent->term == term_;
    if (!has_coordinator) {
      if (agent->lost_at == 0) {
        agent->lost_at = now_;
      }
      if (agent->running >= 0 && now_ - agent->lost_at > kPatience) {
        EndAttempt(*agent, {.code = 75});
      }
      if (coordinator_ != nullptr && Rarely(3)) {
        if (agent->running < 0) {  // As an agent of the launcher: a new one with the memory.
          StartAgent(number, agent->inbox->memory());
        }
        Join(number);
      }
      return;
    }
    heard_.insert(agent->name);
    while (agent->next_order < orders_.size() && orders_[agent->next_order].at <= now_) {
      const auto order = LobbyOrder::Parse(orders_[agent->next_order++].text);
      ASSERT_TRUE(order.ok()) << order.status();
      agent->inbox->Take(*order);
    }
    Obey(number);
  }

  void Obey(size_t number) {
    Agent& agent = *nodes_[number].agent;
    if (agent.running >= 0) {
      const auto stop = agent.inbox->TakeStop(agent.running);
      if (!stop.has_value()) {
        return;
      }
      const bool saves = stop->kind == LobbyOrder::Kind::kStop && stop->save;
      EndAttempt(agent, {.code = saves ? 143 : 75, .stop_signal = saves ? SIGTERM : 0});
    }
    while (const auto order = agent.inbox->Next()) {
      if (order->kind == LobbyOrder::Kind::kStart) {
        Begin(agent, *order);
        return;
      }
      if (order->kind == LobbyOrder::Kind::kDismiss) {
        if (order->code != 75) {
          EXPECT_NE(number, 0U) << order->text;
          KillAgent(number);
          return;
        }
        gone_.push_back(agent.name);
        StartAgent(number, {});
        return;
      }
      EXPECT_NE(order->kind, LobbyOrder::Kind::kEnd) << order->code << ": " << order->text;
    }
  }

  void Begin(Agent& agent, const LobbyOrder& order) {
    agent.running = order.attempt;
    const auto [world, is_new] = worlds_.emplace(order.attempt, order.names);
    EXPECT_EQ(world->second, order.names) << "attempt " << order.attempt << " has two worlds";
    newest_ = std::max(newest_, order.attempt);
    if (is_new) {
      Tell(absl::StrCat("attempt ", order.attempt, " of ", order.names.size(), " nodes, term ",
                        agent.term));
      EXPECT_GE(static_cast<int>(order.names.size()), options_.nodes_min);
      EXPECT_LE(static_cast<int>(order.names.size()), options_.nodes_max);
    }
    for (const Node& node : nodes_) {
      const Agent* const other = node.agent.get();
      // One that is cut off, or that has not found the coordinator yet, may have ranks of a former
      // attempt, whose number fences them.
      EXPECT_TRUE(other == nullptr || other->is_cut || other->term != term_ || other->running < 0 ||
                  other->running >= order.attempt || Knows(*other, order.attempt))
          << other->name << " still trains in attempt " << other->running << " when "
          << order.attempt << " begins";
    }
  }
  // Whether the order of that attempt lies in what it has not read yet, so that it was given up.
  bool Knows(const Agent& agent, int attempt) const {
    const auto world = worlds_.find(attempt);
    return world != worlds_.end() &&
           std::count(world->second.begin(), world->second.end(), agent.name) == 0;
  }

  void AdvanceCoordinator() {
    if (coordinator_ == nullptr) {
      if (now_ >= coordinator_at_) {
        StartCoordinator(/*is_successor=*/true);
      }
      return;
    }
    coordinator_->TakeLosses(std::exchange(heard_, {}), std::exchange(gone_, {}), now_,
                             absl::Nanoseconds(kTick));
    for (auto letter = inbox_.begin(); letter != inbox_.end();) {
      if (letter->at > now_) {
        ++letter;
        continue;
      }
      const auto message = LobbyMessage::Parse(letter->text);
      ASSERT_TRUE(message.ok()) << message.status();
      coordinator_->Take(*message, now_);
      letter = inbox_.erase(letter);
    }
    coordinator_->Tick(now_);
    for (const LobbyOrder& order : coordinator_->TakeOrders()) {
      orders_.push_back({now_ + Below(60) * kMillisecond, order.Encode()});
    }
  }

  void CheckAllTrain() {
    const int fit = std::min(static_cast<int>(nodes_.size()), options_.nodes_max);
    int training = 0;
    for (const Node& node : nodes_) {
      training += node.agent != nullptr && node.agent->running == newest_ ? 1 : 0;
    }
    EXPECT_EQ(training, fit) << "of " << nodes_.size() << " nodes in attempt " << newest_;
  }

  Chance chance_;
  const Faults faults_;
  const bool is_told_;
  const ElasticOptions options_;
  int64_t now_ = 0;
  std::vector<Node> nodes_;
  std::unique_ptr<CoordinatorState> coordinator_;  // Null: it has died.
  int64_t coordinator_at_ = 0;                     // When its successor starts.
  int64_t term_ = 0;
  std::vector<Letter> orders_;  // The present coordinator's.
  std::deque<Letter> inbox_;
  std::set<std::string> heard_;
  std::vector<std::string> gone_;
  std::map<int, std::vector<std::string>> worlds_;  // By attempt.
  int newest_ = -1;
  int next_name_ = 0;
  int64_t step_ = 0;
};

void RunSeeds(Faults faults, int seeds_of_suite,
              const std::function<void(const Simulation&)>& check) {
  const int64_t only = Setting("DTRAIN_SIMULATION_SEED", 0);
  const int64_t seeds =
      std::getenv("DTRAIN_TEST_LONG") != nullptr ? kSeedsOfLongTest : seeds_of_suite;
  for (int64_t seed = only > 0 ? only : 1; seed <= (only > 0 ? only : seeds); ++seed) {
    SCOPED_TRACE(testing::Message() << "replay: DTRAIN_SIMULATION_SEED=" << seed);
    Simulation simulation(static_cast<uint64_t>(seed), faults, only > 0);
    simulation.Run();
    check(simulation);
    if (::testing::Test::HasFailure()) {
      return;
    }
  }
}

TEST(CoordinatorSimulation, IsSafeAndTrainsAgainWhateverHappened) {
  int64_t terms = 0;
  RunSeeds(Faults::kAll, kSeeds,
           [&](const Simulation& simulation) { terms += simulation.terms() - 1; });
  EXPECT_GT(terms, 0) << "coordinators die in it";
}

TEST(CoordinatorSimulation, CoordinatorsThatComeBackCostNoAttempt) {
  RunSeeds(Faults::kCoordinatorsOnly, kSeeds / 4, [](const Simulation& simulation) {
    // One from the start, and one more when the job grows from its first world.
    EXPECT_LE(simulation.attempts(), 3);
  });
}

TEST(CoordinatorState, ANodeThatComesToASuccessorBeforeTheOthersLearnsThatItIsASpare) {
  ElasticOptions options{.nodes_min = 2, .nodes_max = 2};
  options.is_successor = true;
  CoordinatorState coordinator(options, absl::Seconds(5), 0);
  coordinator.Take({.kind = LobbyMessage::Kind::kJoin, .from = "spare", .node = {7, "h7", 1}}, 0);
  EXPECT_TRUE(coordinator.TakeOrders().empty());
  const AttemptMemory memory{.attempt = 4, .nodes = {{0, "h0", 1}, {1, "h1", 1}}};
  for (const ElasticNode& node : memory.nodes) {
    LobbyMessage join{.kind = LobbyMessage::Kind::kJoin, .from = node.host, .node = node};
    join.memory = memory;
    coordinator.Take(join, 0);
  }
  const std::vector<LobbyOrder> orders = coordinator.TakeOrders();
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders[0].kind, LobbyOrder::Kind::kPark);
  EXPECT_EQ(orders[0].names, std::vector<std::string>{"spare"});
}

TEST(CoordinatorState, AnUnknownAgentSpeaksForNoAwaitedNode) {
  ElasticOptions options{.nodes_min = 2, .nodes_max = 3};
  options.is_successor = true;
  CoordinatorState coordinator(options, absl::Seconds(5), 0);
  AttemptMemory memory{.attempt = 4, .nodes = {{0, "h0", 1}, {1, "h1", 1}, {2, "h2", 1}}};
  LobbyMessage join{.kind = LobbyMessage::Kind::kJoin, .from = "of 1", .node = memory.nodes[1]};
  join.memory = memory;
  coordinator.Take(join, 0);  // Nodes 0 and 2 are awaited.

  coordinator.Take({.kind = LobbyMessage::Kind::kLeave, .from = "unknown"}, kSecond);
  coordinator.Take(
      {.kind = LobbyMessage::Kind::kReport, .from = "unknown", .report = {.attempt = 4, .code = 1}},
      kSecond);
  coordinator.Tick(2 * kSecond);

  EXPECT_TRUE(coordinator.TakeOrders().empty());
}

}  // namespace
}  // namespace dtrain::launcher::coordinator_simulation_test
