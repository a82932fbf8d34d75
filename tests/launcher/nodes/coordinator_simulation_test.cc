// The whole coordinator and its agents over simulated nodes, clock and network: messages are
// delayed, sent twice, held back by cut links and lost with the processes that hold them. Agents
// and coordinators die and come back. Safety: nodes enter the world in whose start they were named,
// no two attempts train at once among those that hear each other, and no attempt is ended by the
// loss of a coordinator that comes back. Liveness: all nodes that fit train when the faults end.
//
// An agent has one TCP connection to its coordinator and makes no call again on another one:
// - A message comes once, in the order of its agent's messages, or is lost with a process or a
//   connection. What is written while packets are lost comes when they get through again.
// - A report comes twice if the coordinator changes while it is posted: with the join to the
//   successor, and by itself before or behind it. A user's request comes twice when he repeats it.
//   A join does not: an agent that cannot tell whether it got through comes back by another name.
// - An agent reads each order once, late if its host is busy.
// - A link may be cut in one direction. Then agents here go on reading, though real ones ask first.
#include <algorithm>
#include <csignal>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
// In one of so many seeds messages are written and read as in a job, which takes most of the time.
constexpr uint64_t kSeedsForOneWritten = 16;

// Which faults a simulation has besides losses of coordinators.
enum class Faults { kAll, kCoordinatorsOnly };

// What does not get through between a node and the coordinator.
enum class Cut { kNone, kBoth, kFromNode, kToNode };

class Simulation {
 public:
  Simulation(uint64_t seed, Faults faults, bool is_told)
      : chance_(seed),
        faults_(faults),
        is_written_(seed % kSeedsForOneWritten == 0),
        is_told_(is_told),
        options_(simulation::JobOf(chance_, 2 + (Rarely(20) ? Below(61) : Below(7)))) {
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
    LobbyInbox inbox;
    int64_t term = 0;        // The coordinator that it follows; 0: it has not joined one.
    size_t next_order = 0;   // The next one of that coordinator's.
    int64_t lost_at = 0;     // When it lost its coordinator; 0: it has one.
    int running = -1;        // The attempt of its ranks.
    LobbyOrder begun;        // The order to start it.
    bool has_met = false;    // It knows where the world of it meets.
    int64_t sent_until = 0;  // When the last of its messages arrives.
  };
  struct Letter {
    int64_t at = 0;
    LobbyMessage message;
  };
  struct Node {
    std::unique_ptr<Agent> agent;  // Null: the node is down.
    Cut cut = Cut::kNone;
    int64_t cut_until = 0;
    std::vector<Letter> held;        // What it wrote while it was not heard.
    std::vector<std::string> ended;  // Its agents whose connections ended meanwhile.

    bool hears() const { return cut == Cut::kNone || cut == Cut::kFromNode; }
    bool is_heard() const { return cut == Cut::kNone || cut == Cut::kToNode; }
  };
  struct SentOrder {
    int64_t at = 0;
    LobbyOrder order;
  };

  int Below(int bound) { return chance_.Below(bound); }
  bool Rarely(int one_in) { return chance_.Rarely(one_in); }
  bool has_nodes_faults() const { return faults_ == Faults::kAll; }
  template <typename... Words>
  void Tell(const Words&... words) const {
    simulation::TellIf(is_told_, now_, words...);
  }

  void StartCoordinator(bool is_successor) {
    ElasticOptions options = options_;
    options.is_successor = is_successor;
    ++term_;
    coordinator_ = std::make_unique<CoordinatorState>(options, absl::Milliseconds(900), now_);
    orders_.clear();
    meetings_.clear();
    inbox_.clear();
    news_ = {.passed = absl::Nanoseconds(kTick)};
    Tell("coordinator ", term_, " starts");
  }
  void KillCoordinator() {
    Tell("coordinator ", term_, " dies");
    coordinator_.reset();
    for (Node& node : nodes_) {  // Their connections were to it.
      node.held.clear();
      node.ended.clear();
    }
    coordinator_at_ = now_ + Below(8) * kSecond;
  }

  void StartAgent(size_t number, std::optional<AttemptMemory> memory) {
    Node& node = nodes_[number];
    if (node.agent != nullptr) {
      news_.heard.erase(node.agent->name);
    }
    const std::string name = absl::StrCat("node ", number, " #", next_name_++);
    node.agent = std::make_unique<Agent>(Agent{name, LobbyInbox(name, std::move(memory))});
  }
  // Its ranks die with it. A host that goes down ends no connection, and what it holds is lost.
  void KillAgent(size_t number, bool with_host) {
    Node& node = nodes_[number];
    Tell(node.agent->name, " dies in attempt ", node.agent->running, with_host ? ", its host" : "");
    if (with_host) {
      node.held.clear();
      node.ended.clear();
    } else {
      EndConnection(node);
    }
    news_.heard.erase(node.agent->name);
    node.agent.reset();
  }
  void EndConnection(Node& node) {
    if (node.is_heard()) {
      news_.gone.push_back(node.agent->name);
    } else if (IsConnected(*node.agent)) {
      node.ended.push_back(node.agent->name);
    }
  }
  // Whom the coordinator hears changes with the agents and the cuts only.
  void NoteHeard(const Node& node) {
    if (node.agent == nullptr) {
      return;
    }
    if (node.agent->term == term_ && node.is_heard()) {
      news_.heard.insert(node.agent->name);
    } else {
      news_.heard.erase(node.agent->name);
    }
  }

  int64_t Delay() {
    return (has_nodes_faults() && Rarely(10) ? Below(1000) : Below(150)) * kMillisecond;
  }
  bool IsConnected(const Agent& agent) const {
    return coordinator_ != nullptr && agent.term == term_;
  }
  void Send(Node& node, LobbyMessage message) {
    Agent& agent = *node.agent;
    if (!IsConnected(agent)) {
      return;
    }
    message.from = agent.name;
    agent.sent_until = std::max(agent.sent_until, now_ + Delay());
    Letter letter{agent.sent_until, std::move(message)};
    (node.is_heard() ? inbox_ : node.held).push_back(std::move(letter));
  }
  // What comes twice has nothing to do with the order of its agent's other messages.
  void SendPerhapsTwice(Node& node, const LobbyMessage& message) {
    Send(node, message);
    if (has_nodes_faults() && Rarely(4) && IsConnected(*node.agent) && node.is_heard()) {
      inbox_.push_back({now_ + Below(2000) * kMillisecond, message});
      inbox_.back().message.from = node.agent->name;
    }
  }
  void Join(size_t number) {
    Node& node = nodes_[number];
    Agent& agent = *node.agent;
    agent.term = term_;
    agent.lost_at = 0;
    agent.sent_until = 0;
    // One whose ranks run reads all orders; a new one those that are to come.
    agent.next_order = agent.running >= 0 ? 0 : orders_.size();
    NoteHeard(node);
    SendReportAgain(node);
    Send(node, {.kind = LobbyMessage::Kind::kJoin,
                .node = {static_cast<int>(number), "h", 1},
                .memory = agent.inbox.memory()});
    SendReportAgain(node);
  }
  void SendReportAgain(Node& node) {
    const std::optional<AttemptMemory>& memory = node.agent->inbox.memory();
    if (memory.has_value() && memory->report.has_value() && Rarely(4)) {
      Send(node, {.kind = LobbyMessage::Kind::kReport, .report = *memory->report});
    }
  }
  void EndAttempt(Node& node, NodeReport report) {
    report.attempt = node.agent->running;
    report.durable_step = ++step_;  // Without progress a job may end with 93.
    Tell(node.agent->name, " ends attempt ", report.attempt, " with ", report.code);
    node.agent->running = -1;
    node.agent->inbox.NoteReport(report);
    SendPerhapsTwice(node, {.kind = LobbyMessage::Kind::kReport, .report = report});
  }

  void MakeTrouble() {
    if (coordinator_ != nullptr && Rarely(120)) {
      KillCoordinator();
    }
    if (!has_nodes_faults()) {
      return;
    }
    if (Rarely(400)) {  // A switch fails.
      const size_t first = 1 + static_cast<size_t>(Below(static_cast<int>(nodes_.size()) - 1));
      const size_t count = 1 + static_cast<size_t>(Below(static_cast<int>(nodes_.size() - first)));
      CutOff(first, count);
    }
    for (size_t number = 0; number < nodes_.size(); ++number) {
      MakeTroubleOf(number);
    }
  }
  // What happens to a node in one tick, in parts of 6000.
  void MakeTroubleOf(size_t number) {
    Node& node = nodes_[number];
    if (node.cut != Cut::kNone && now_ >= node.cut_until) {
      Heal(node);
    }
    const int fate = Below(6000);
    if (node.agent == nullptr) {
      if (fate < 150) {
        StartAgent(number, {});
      }
    } else if (fate < 15 && number > 0) {
      const bool with_host = Rarely(2);
      KillAgent(number, with_host);
      if (!with_host && Rarely(2)) {  // Or only its connection broke.
        StartAgent(number, {});
      }
    } else if (fate < 27 && number > 0) {
      CutOff(number, 1);
    } else if (fate < 42 && node.agent->running >= 0) {
      EndAttempt(node, {.code = 137, .cause = RankEnd{.signal = SIGKILL}});
    } else if (fate >= 42 && fate < 52) {
      const int target = Below(static_cast<int>(nodes_.size()));
      Tell(node.agent->name, " asks to drain node ", target);
      SendPerhapsTwice(node, {.kind = LobbyMessage::Kind::kDrain, .target = absl::StrCat(target)});
    }
  }
  void CutOff(size_t first, size_t count) {
    const auto cut = static_cast<Cut>(1 + Below(3));
    const int64_t until = now_ + Below(5000) * kMillisecond;
    for (size_t number = first; number < first + count; ++number) {
      Node& node = nodes_[number];
      Heal(node);  // What was held back by another cut arrives.
      Tell("node ", number, " is cut off, kind ", static_cast<int>(cut));
      node.cut = cut;
      node.cut_until = until;
      NoteHeard(node);
    }
  }
  // The network lets through again what was written.
  void Heal(Node& node) {
    node.cut = Cut::kNone;
    NoteHeard(node);
    std::move(node.held.begin(), node.held.end(), std::back_inserter(inbox_));
    node.held.clear();
    std::move(node.ended.begin(), node.ended.end(), std::back_inserter(news_.gone));
    node.ended.clear();
  }
  void Restore() {
    for (size_t number = 0; number < nodes_.size(); ++number) {
      if (nodes_[number].agent == nullptr) {
        StartAgent(number, {});
      }
      if (nodes_[number].cut != Cut::kNone) {
        Heal(nodes_[number]);
      }
    }
  }

  void Advance(size_t number) {
    Node& node = nodes_[number];
    // One that hears nothing takes its coordinator for alive. A busy host is late.
    if (node.agent == nullptr || !node.hears() || (has_nodes_faults() && Rarely(10))) {
      return;
    }
    Agent& agent = *node.agent;
    if (!IsConnected(agent)) {
      SeekCoordinator(number);
      return;
    }
    Meet(agent);
    while (agent.next_order < orders_.size() && orders_[agent.next_order].at <= now_) {
      agent.inbox.Take(orders_[agent.next_order++].order);
    }
    Obey(number);
  }
  // An agent may ask before it has read that it was given up.
  void Meet(Agent& agent) {
    const bool asks = agent.running >= 0 && !agent.has_met;
    const auto meeting =
        asks ? meetings_.find(MeetingKey(agent.begun.term, agent.running)) : meetings_.end();
    if (meeting != meetings_.end()) {
      agent.has_met = true;
      EXPECT_EQ(meeting->second, agent.begun.names) << agent.name << " enters another world";
    }
  }

  void SeekCoordinator(size_t number) {
    Node& node = nodes_[number];
    const Agent& agent = *node.agent;
    node.agent->lost_at = agent.lost_at == 0 ? now_ : agent.lost_at;
    if (agent.running >= 0 && now_ - agent.lost_at > kPatience) {
      EndAttempt(node, {.code = 75});
    }
    if (coordinator_ != nullptr && node.cut == Cut::kNone && Rarely(3)) {
      if (agent.running < 0) {  // The launcher makes a new agent with the memory.
        StartAgent(number, agent.inbox.memory());
      }
      Join(number);
    }
  }

  void Obey(size_t number) {
    Node& node = nodes_[number];
    Agent& agent = *node.agent;
    if (agent.running >= 0) {
      const auto stop = agent.inbox.TakeStop(agent.running);
      if (!stop.has_value()) {
        return;
      }
      const bool saves = stop->kind == LobbyOrder::Kind::kStop && stop->save;
      EndAttempt(node, {.code = saves ? 143 : 75, .stop_signal = saves ? SIGTERM : 0});
    }
    while (const auto order = agent.inbox.Next()) {
      if (order->kind == LobbyOrder::Kind::kStart) {
        Begin(number, *order);
        return;
      }
      if (order->kind == LobbyOrder::Kind::kDismiss) {
        if (order->code != 75) {
          EXPECT_NE(number, 0U) << order->text;
          KillAgent(number, /*with_host=*/false);
          return;
        }
        Tell(agent.name, " is given up: ", order->text);
        EndConnection(node);
        StartAgent(number, {});
        return;
      }
      EXPECT_NE(order->kind, LobbyOrder::Kind::kEnd) << order->code << ": " << order->text;
    }
  }

  void Begin(size_t number, const LobbyOrder& order) {
    Agent& agent = *nodes_[number].agent;
    agent.running = order.attempt;
    agent.begun = order;
    agent.has_met = false;
    const auto begun = std::pair(order.term, order.attempt);
    if (number == 0) {
      BeginWorld(order);
    }
    for (const Node& node : nodes_) {
      const Agent* const other = node.agent.get();
      // One that is cut off, or that has not found the coordinator yet, may have ranks of a former
      // attempt, which meets elsewhere. So may one that has not yet read that it was given up.
      const bool is_fenced = other == nullptr || other->running < 0 ||
                             std::pair(other->begun.term, other->running) >= begun ||
                             node.cut != Cut::kNone || other->term != term_ ||
                             std::count(order.names.begin(), order.names.end(), other->name) == 0;
      EXPECT_TRUE(is_fenced) << other->name << " still trains in attempt " << other->running
                             << " when " << order.attempt << " begins";
    }
  }
  // Node 0, which is in each world, tells the others where its ranks meet. A number of which only
  // others have heard may come again.
  void BeginWorld(const LobbyOrder& order) {
    EXPECT_GT(order.attempt, newest_) << "attempt " << order.attempt << " begins twice";
    newest_ = order.attempt;
    meetings_[MeetingKey(order.term, order.attempt)] = order.names;
    Tell("attempt ", order.attempt, " of ", order.names.size(), " nodes, term ", term_);
    EXPECT_GE(static_cast<int>(order.names.size()), options_.nodes_min);
    EXPECT_LE(static_cast<int>(order.names.size()), options_.nodes_max);
  }

  void AdvanceCoordinator() {
    if (coordinator_ == nullptr) {
      if (now_ >= coordinator_at_) {
        StartCoordinator(/*is_successor=*/true);
      }
      return;
    }
    TakeLetters();
    coordinator_->Take(news_, now_);
    news_.messages.clear();
    news_.gone.clear();
    coordinator_->Tick(now_);
    for (LobbyOrder& order : coordinator_->TakeOrders()) {
      orders_.push_back({now_ + Delay(), simulation::AsRead(is_written_, std::move(order))});
      orders_.back().order.term = term_;
    }
  }
  // Those that have arrived by now, and all of the agents whose connections have ended.
  void TakeLetters() {
    const auto has_come = [this, &gone = news_.gone](const Letter& letter) {
      return letter.at <= now_ || std::count(gone.begin(), gone.end(), letter.message.from) > 0;
    };
    for (Letter& letter : simulation::TakeLetters(inbox_, has_come)) {
      news_.messages.push_back(simulation::AsRead(is_written_, std::move(letter.message)));
    }
  }

  void CheckAllTrain() {
    const int fit = std::min(static_cast<int>(nodes_.size()), options_.nodes_max);
    int training = 0;
    const Agent* const first = nodes_[0].agent.get();  // Null: it was sent away, which is told.
    for (const Node& node : nodes_) {
      const bool is_there = node.agent != nullptr && node.agent->running == newest_;
      training += is_there && first != nullptr && node.agent->begun.term == first->begun.term;
    }
    EXPECT_EQ(training, fit) << "of " << nodes_.size() << " nodes in attempt " << newest_;
  }

  Chance chance_;
  const Faults faults_;
  const bool is_written_;
  const bool is_told_;
  const ElasticOptions options_;
  int64_t now_ = 0;
  std::vector<Node> nodes_;
  std::unique_ptr<CoordinatorState> coordinator_;  // Null: it has died.
  int64_t coordinator_at_ = 0;                     // When its successor starts.
  int64_t term_ = 0;
  std::vector<SentOrder> orders_;  // The present coordinator's.
  std::vector<Letter> inbox_;
  LobbyNews news_;  // Since its last look.
  // The worlds that node 0 has told of at the present coordinator, by keys.
  std::map<std::string, std::vector<std::string>> meetings_;
  int newest_ = -1;
  int next_name_ = 0;
  int64_t step_ = 0;
};

TEST(CoordinatorSimulation, IsSafeAndTrainsAgainWhateverHappened) {
  int64_t terms = 0;
  simulation::PlaySeeds({.of_suite = 20'000, .of_long_test = 200'000},
                        [&terms](uint64_t seed, bool is_told) {
                          Simulation simulation(seed, Faults::kAll, is_told);
                          simulation.Run();
                          terms += simulation.terms() - 1;
                        });
  EXPECT_GT(terms, 0) << "coordinators die in it";
}

TEST(CoordinatorSimulation, CoordinatorsThatComeBackCostNoAttempt) {
  simulation::PlaySeeds({.of_suite = 5000, .of_long_test = 50'000},
                        [](uint64_t seed, bool is_told) {
                          Simulation simulation(seed, Faults::kCoordinatorsOnly, is_told);
                          simulation.Run();
                          // One from the start, and one more when the job grows from its first
                          // world.
                          EXPECT_LE(simulation.attempts(), 3);
                        });
}

}  // namespace
}  // namespace dtrain::launcher::coordinator_simulation_test
