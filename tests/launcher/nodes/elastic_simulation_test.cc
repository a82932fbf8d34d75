// ElasticJob among simulated nodes that are lost, cut off, told to leave, have full disks and come
// back, over thousands of seeds. Its events are delayed, and reports, losses and requests come
// twice. Safety: one attempt at a time, of a world that is allowed and divides the batch. Liveness:
// when the faults have ended, the job runs with all nodes that it can use.
#include <algorithm>
#include <csignal>
#include <map>
#include <queue>
#include <vector>

#include "gtest/gtest.h"
#include "launcher/nodes/elastic_job.h"
#include "tests/launcher/nodes/simulation.h"

namespace dtrain::launcher::elastic_simulation_test {
namespace {

using simulation::Chance;
using simulation::kMillisecond;
using simulation::kSecond;
using simulation::kTick;

constexpr int64_t kFaultTime = 60 * kSecond;
constexpr int64_t kQuietTime = 60 * kSecond;
// With more of them a node would be set aside for longer than the simulation lasts.
constexpr int kFillsMax = 2;

class Simulation {
 public:
  Simulation(uint64_t seed, bool is_told)
      : chance_(seed), is_told_(is_told), options_(MakeOptions()), job_(options_, 0) {
    const int count = options_.nodes_max + Below(3);
    for (int number = 0; number < count; ++number) {
      nodes_.push_back({.ranks = ranks_});
      Start(number);
    }
  }

  void Run() {
    for (; now_ < kFaultTime + kQuietTime && !::testing::Test::HasFailure(); now_ += kTick) {
      if (now_ < kFaultTime) {
        MakeTrouble();
      } else {
        Restore();
      }
      Deliver();
      job_.Tick(now_);
      Obey();
    }
    CheckAllRun();
  }

 private:
  struct Node {
    int ranks = 1;
    int id = -1;             // Its agent's; -1: it has none.
    bool cut = false;        // The coordinator hears nothing of it, and it hears nothing.
    int running = -1;        // The attempt whose ranks it has.
    int64_t full_until = 0;  // Its disk is full, so that it can start no ranks.
    int fills = 0;           // How often it was.
  };
  struct Event {
    int64_t at = 0;
    int id = 0;
    enum class Kind { kJoin, kLose, kReport } kind = Kind::kJoin;
    int number = 0;
    NodeReport report = {};
    bool operator<(const Event& other) const { return at > other.at; }  // The earliest is on top.
  };

  int Below(int bound) { return chance_.Below(bound); }
  bool Rarely(int one_in) { return chance_.Rarely(one_in); }
  template <typename... Words>
  void Tell(const Words&... words) const {
    simulation::TellIf(is_told_, now_, words...);
  }

  ElasticOptions MakeOptions() {
    ranks_ = 1 + Below(2);
    ElasticOptions options = simulation::JobOf(chance_, 2 + (Rarely(20) ? Below(61) : Below(6)));
    // The smallest allowed world divides it, and often larger ones do not.
    options.batch = Rarely(4)
                        ? BatchSizes{}
                        : BatchSizes{int64_t{2} * ranks_ * options.nodes_min * (1 + Below(6)), 2};
    return options;
  }

  void Start(int number) {
    Node& node = nodes_[static_cast<size_t>(number)];
    node.id = next_id_++;
    node.cut = false;
    node.running = -1;
    events_.push({now_ + Below(50) * kMillisecond, node.id, Event::Kind::kJoin, number, {}});
  }

  // The agent dies with its ranks, and the coordinator learns of it within a second.
  void Kill(int number) {
    Node& node = nodes_[static_cast<size_t>(number)];
    Tell("node ", number, " dies in attempt ", node.running);
    // By the end of its connection, and by its silence.
    for (int news = 1 + Below(2); news > 0; --news) {
      events_.push({now_ + Below(1000) * kMillisecond, node.id, Event::Kind::kLose, number, {}});
    }
    node.id = -1;
    node.running = -1;
  }

  void EndAttempt(Node& node, NodeReport report) {
    report.attempt = node.running;
    report.durable_step = ++step_;  // Without progress a job may end with 93.
    node.running = -1;
    const int64_t at = now_ + (Rarely(10) ? Below(1000) : Below(50)) * kMillisecond;
    events_.push({at, node.id, Event::Kind::kReport, 0, report});
    if (Rarely(4)) {
      events_.push({at + Below(2000) * kMillisecond, node.id, Event::Kind::kReport, 0, report});
    }
  }

  void MakeTrouble() {
    for (int number = 0; number < static_cast<int>(nodes_.size()); ++number) {
      MakeTroubleOf(number);
    }
  }
  // What happens to a node in one tick, in parts of 6000.
  void MakeTroubleOf(int number) {
    Node& node = nodes_[static_cast<size_t>(number)];
    const int fate = Below(6000);
    const bool runs = node.running >= 0 && !node.cut;
    if (node.id < 0) {
      if (fate < 150) {
        Start(number);
      }
    } else if (fate < 20 && number > 0) {
      Kill(number);
    } else if (fate < 35 && number > 0) {
      Tell("node ", number, " is cut off");
      node.cut = true;  // Its ranks run on; the coordinator counts it as lost.
      events_.push({now_ + kSecond, node.id, Event::Kind::kLose, number, {}});
    } else if (fate < 55 && runs) {
      const RankEnd killed{.signal = SIGKILL};
      EndAttempt(node,
                 Rarely(2) ? NodeReport{.code = 75} : NodeReport{.code = 137, .cause = killed});
    } else if (fate >= 55 && fate < 67 && runs && number > 0) {
      EndAttempt(node, {.code = 143, .stop_signal = SIGTERM, .stopped_here = true});
    } else if (fate >= 67 && fate < 79) {
      Tell("node ", number, " is drained");
      job_.Drain(node.id, now_).IgnoreError();
      if (Rarely(3)) {
        job_.Drain(node.id, now_).IgnoreError();
      }
    } else if (fate >= 79 && fate < 99 && number > 0 && node.fills < kFillsMax) {
      ++node.fills;
      node.full_until = now_ + Below(8000) * kMillisecond;
      Tell("node ", number, " has a full disk");
    } else if (node.cut && fate >= 100 && fate < 300) {
      Start(number);  // It has learnt that it was given up, and comes back.
    }
  }

  void Restore() {
    for (int number = 0; number < static_cast<int>(nodes_.size()); ++number) {
      if (nodes_[static_cast<size_t>(number)].id < 0 || nodes_[static_cast<size_t>(number)].cut) {
        Start(number);
      }
    }
  }

  void Deliver() {
    while (!events_.empty() && events_.top().at <= now_) {
      const Event event = events_.top();
      events_.pop();
      switch (event.kind) {
        case Event::Kind::kJoin: {
          // A number whose last agent is not yet known to be lost would be refused; its agent then
          // tries again.
          if (known_.count(event.number) > 0) {
            events_.push({now_ + kTick, event.id, event.kind, event.number, {}});
            break;
          }
          known_[event.number] = event.id;
          if (nodes_[static_cast<size_t>(event.number)].id != event.id) {
            // It died before its message was read, and nothing will be heard of it.
            events_.push({now_ + kSecond, event.id, Event::Kind::kLose, event.number, {}});
          }
          job_.Join(event.id, {event.number, "h", nodes_[static_cast<size_t>(event.number)].ranks},
                    now_);
          break;
        }
        case Event::Kind::kLose:
          if (known_.count(event.number) > 0 && known_[event.number] == event.id) {
            known_.erase(event.number);
          }
          job_.Lose(event.id, "lost", now_);
          break;
        case Event::Kind::kReport:
          job_.Report(event.id, event.report, now_);
          break;
      }
    }
  }

  // The agents carry out the actions.
  void Obey() {
    for (const ElasticAction& action : job_.TakeActions()) {
      switch (action.kind) {
        case ElasticAction::Kind::kStart:
          CheckStart(action);
          for (Node& node : nodes_) {
            const bool is_in =
                std::count(action.nodes.begin(), action.nodes.end(), node.id) > 0 && node.id >= 0;
            node.running = is_in && !node.cut ? action.attempt : node.running;
            if (is_in && !node.cut && now_ < node.full_until) {
              EndAttempt(node, {.code = 75, .cannot_start = true, .why = "its disk is full"});
            }
          }
          break;
        case ElasticAction::Kind::kStop:
          for (Node& node : nodes_) {
            if (node.id >= 0 && !node.cut && node.running == action.attempt) {
              EndAttempt(
                  node, {.code = action.save ? 143 : 75, .stop_signal = action.save ? SIGTERM : 0});
            }
          }
          break;
        case ElasticAction::Kind::kPark:
          break;
        case ElasticAction::Kind::kDismiss:
          for (int number = 0; number < static_cast<int>(nodes_.size()); ++number) {
            Node& node = nodes_[static_cast<size_t>(number)];
            if (node.id == action.nodes.front()) {
              EXPECT_NE(number, 0);
              Kill(number);
            }
          }
          break;
        case ElasticAction::Kind::kEnd:
          ADD_FAILURE() << "the job has ended with " << action.code << ": " << action.why;
          break;
      }
    }
  }

  void CheckStart(const ElasticAction& action) {
    Tell("attempt ", action.attempt, " of ", action.nodes.size(), " nodes: ", action.why);
    EXPECT_EQ(action.attempt, last_attempt_ + 1);
    last_attempt_ = action.attempt;
    const int count = static_cast<int>(action.nodes.size());
    EXPECT_GE(count, options_.nodes_min);
    EXPECT_LE(count, options_.nodes_max);
    EXPECT_TRUE(Divides(options_.batch, int64_t{count} * ranks_)) << count;
    EXPECT_EQ(action.nodes.front(), nodes_.front().id) << "node 0 is first";
    for (const Node& node : nodes_) {
      // One that is cut off may have ranks of a former attempt, whose epoch fences them.
      EXPECT_TRUE(node.cut || node.id < 0 || node.running < 0)
          << "attempt " << node.running << " still runs when " << action.attempt << " begins";
    }
  }

  void CheckAllRun() {
    WorldRequest request{{}, options_.nodes_min, options_.nodes_max, options_.batch};
    for (const Node& node : nodes_) {
      request.nodes.push_back({"", node.ranks});
    }
    const size_t expected = static_cast<size_t>(ChooseWorld(request).nodes);
    ASSERT_GT(expected, 0U);
    EXPECT_EQ(job_.world().size(), expected);
    EXPECT_EQ(std::count_if(nodes_.begin(), nodes_.end(),
                            [&](const Node& node) { return node.running == last_attempt_; }),
              static_cast<ptrdiff_t>(expected));
  }

  Chance chance_;
  const bool is_told_;
  int ranks_ = 1;
  const ElasticOptions options_;
  ElasticJob job_;
  int64_t now_ = 0;
  int next_id_ = 0;
  int last_attempt_ = -1;
  int64_t step_ = 0;
  std::vector<Node> nodes_;   // By number.
  std::map<int, int> known_;  // The agents by number, as the coordinator knows them.
  std::priority_queue<Event> events_;
};

TEST(ElasticSimulation, IsSafeAndRunsAgainAfterWhateverHappened) {
  simulation::PlaySeeds({.of_suite = 20'000, .of_long_test = 200'000},
                        [](uint64_t seed, bool is_told) { Simulation(seed, is_told).Run(); });
}

}  // namespace
}  // namespace dtrain::launcher::elastic_simulation_test
