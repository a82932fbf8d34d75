// The knowledge of an elastic job's coordinator about its agents, and the orders that follow. Pure:
// messages, losses and the time go in, orders come out. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "launcher/nodes/elastic_job.h"
#include "launcher/nodes/lobby_messages.h"

namespace dtrain::launcher {

// The messages and ends of connections that a coordinator has seen since its last look. Both tell
// of an agent's end, and must not overtake each other: a report is posted before the connection
// ends, and an agent that is started again joins behind that.
struct LobbyNews {
  // In their order. They include all that the agents in `gone` have posted.
  std::vector<LobbyMessage> messages = {};
  std::set<std::string> heard = {};              // By names.
  std::vector<std::string> gone = {};            // Agents whose connections have ended.
  absl::Duration passed = absl::ZeroDuration();  // Since the last news, by AwakeTime.
};

class CoordinatorState {
 public:
  // An agent of which nothing is heard for `silence` is lost.
  CoordinatorState(const ElasticOptions& job, absl::Duration silence, int64_t now_nanos)
      : silence_(silence), job_(job, now_nanos) {}

  // Takes the messages, and then the losses.
  void Take(const LobbyNews& news, int64_t now_nanos);
  void Take(const LobbyMessage& message, int64_t now_nanos);
  // By names: who was heard since the last call, and whose connections have ended. `passed` is the
  // time since the last call without that in which this process did not run (awake_time.h).
  void TakeLosses(const std::set<std::string>& heard, const std::vector<std::string>& gone,
                  int64_t now_nanos, absl::Duration passed);
  // Whether an agent of node 0, whose coordinator this is, is among `gone` while the job goes on.
  bool AwaitsOwnEnd(const std::vector<std::string>& gone) const;
  void Tick(int64_t now_nanos) { job_.Tick(now_nanos); }
  // Gives each order once, in order.
  std::vector<LobbyOrder> TakeOrders();
  // The nodes of the job, and those that it has lost or let go; nothing if nothing has changed
  // since the last call.
  std::optional<LobbyNodes> TakeNodes();

 private:
  struct Agent {
    std::string name;
    ElasticNode node;
    absl::Duration silent = absl::ZeroDuration();
  };
  std::vector<std::string> OfNode(int number, const std::vector<std::string>& names) const;
  void Drain(const LobbyMessage& message, int64_t now);
  LobbyOrder OrderOf(const ElasticAction& action) const;
  // Names in orders are those of the agents when the job decided.
  void CollectOrders();
  int IdOf(const std::string& name) const;
  void NoteDismissal(const LobbyOrder& order);

  const absl::Duration silence_;
  ElasticJob job_;
  std::map<int, Agent> agents_;  // By id.
  int next_id_ = 0;
  std::vector<LobbyOrder> orders_;
  std::map<int, LobbyNodes::Row> gone_;  // The last end of a node's agent, by the node's number.
  bool nodes_changed_ = false;
};

}  // namespace dtrain::launcher
