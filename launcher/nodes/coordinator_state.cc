#include "launcher/nodes/coordinator_state.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

// Whether `target` names the host, with its domain or without.
bool IsHost(absl::string_view target, absl::string_view host) {
  return absl::EqualsIgnoreCase(target, host) ||
         absl::EqualsIgnoreCase(target, host.substr(0, host.find('.'))) ||
         absl::EqualsIgnoreCase(target.substr(0, target.find('.')), host);
}

// Whether `target` is the number of the node, or the name of its host by itself or by the hostfile.
bool Names(const std::string& target, const ElasticNode& node) {
  int number = -1;
  return absl::SimpleAtoi(target, &number)
             ? node.number == number
             : IsHost(target, node.host) || (!node.alias.empty() && IsHost(target, node.alias));
}

}  // namespace

void CoordinatorState::Take(const LobbyNews& news, int64_t now_nanos) {
  for (const LobbyMessage& message : news.messages) {
    if (message.kind == LobbyMessage::Kind::kJoin) {
      TakeLosses(news.heard, OfNode(message.node.number, news.gone), now_nanos,
                 absl::ZeroDuration());
    }
    Take(message, now_nanos);
  }
  TakeLosses(news.heard, news.gone, now_nanos, news.passed);
}

// The agents of node `number` among `names`.
std::vector<std::string> CoordinatorState::OfNode(int number,
                                                  const std::vector<std::string>& names) const {
  std::vector<std::string> found;
  std::copy_if(names.begin(), names.end(), std::back_inserter(found),
               [this, number](const std::string& name) {
                 const int id = IdOf(name);
                 return id >= 0 && agents_.at(id).node.number == number;
               });
  return found;
}

void CoordinatorState::Take(const LobbyMessage& message, int64_t now_nanos) {
  nodes_changed_ = true;
  const int id = message.kind == LobbyMessage::Kind::kJoin ? next_id_++ : IdOf(message.from);
  const bool needs_agent =
      message.kind == LobbyMessage::Kind::kReport || message.kind == LobbyMessage::Kind::kLeave;
  if (needs_agent && id < 0) {
    return;  // It was given up, or its join follows. Awaited nodes have negative numbers too.
  }
  switch (message.kind) {
    case LobbyMessage::Kind::kJoin:
      agents_[id] = {message.from, message.node};
      job_.HasBegun(message.job_term);
      if (message.memory.has_value()) {
        job_.Adopt(id, message.node, *message.memory, now_nanos);
      } else {
        job_.Join(id, message.node, now_nanos);
      }
      return;
    case LobbyMessage::Kind::kReport:
      job_.Report(id, message.report, now_nanos);
      return;
    case LobbyMessage::Kind::kLeave: {
      const ElasticNode& node = agents_.at(id).node;
      gone_[node.number] = {.node = node, .state = "left", .why = "by a signal"};
      job_.Leave(id, now_nanos);
      return;
    }
    case LobbyMessage::Kind::kStop:
      job_.Stop(message.signal, now_nanos);
      return;
    case LobbyMessage::Kind::kDrain:
      Drain(message, now_nanos);
      return;
  }
}

void CoordinatorState::Drain(const LobbyMessage& message, int64_t now_nanos) {
  std::vector<int> found;
  std::vector<std::string> known;
  for (const auto& [id, agent] : agents_) {
    const ElasticNode& node = agent.node;
    known.push_back(node.Name());
    if (Names(message.target, node)) {
      found.push_back(id);
    }
  }
  LobbyOrder answer{.kind = LobbyOrder::Kind::kAnswer,
                    .names = {message.from},
                    .code = kExitUsage,
                    .text = absl::StrFormat("%s nodes of the job are \"%s\"; its nodes: %s",
                                            found.empty() ? "no" : "several", message.target,
                                            absl::StrJoin(known, ", "))};
  if (found.size() == 1) {
    const Agent& agent = agents_.at(found.front());
    const absl::Status status = job_.Drain(found.front(), now_nanos);
    answer.code = status.ok() ? kExitOk : kExitUsage;
    answer.text = status.ok() ? agent.node.Name() : std::string(status.message());
    answer.names.push_back(agent.name);
  }
  orders_.push_back(std::move(answer));
}

void CoordinatorState::TakeLosses(const std::set<std::string>& heard,
                                  const std::vector<std::string>& gone, int64_t now_nanos,
                                  absl::Duration passed) {
  std::vector<std::pair<int, std::string>> lost;
  std::vector<std::string> names;
  for (auto& [id, agent] : agents_) {
    agent.silent = heard.count(agent.name) > 0 ? absl::ZeroDuration() : agent.silent + passed;
    if (std::count(gone.begin(), gone.end(), agent.name) > 0) {
      lost.emplace_back(id, "the connection of its agent has ended");
    } else if (agent.silent > silence_) {
      lost.emplace_back(
          id, absl::StrFormat("its agent has been silent for %s", absl::FormatDuration(silence_)));
    } else {
      continue;
    }
    names.push_back(agent.name);
  }
  // They come back as other agents if they live after all, and whoever drains one learns of it.
  if (!names.empty()) {
    orders_.push_back({.kind = LobbyOrder::Kind::kDismiss, .names = names, .code = kExitTemporary});
  }
  nodes_changed_ = nodes_changed_ || !names.empty();
  for (const auto& [id, why] : lost) {
    if (job_.HasNode(id)) {  // Otherwise it has left before.
      const ElasticNode& node = agents_.at(id).node;
      gone_[node.number] = {.node = node, .state = "lost", .why = why};
    }
    job_.Lose(id, why, now_nanos);
    // An attempt that has begun by a message of this look, or begins now, may name a lost agent,
    // and ends at once.
    CollectOrders();
    agents_.erase(id);
  }
}

bool CoordinatorState::AwaitsOwnEnd(const std::vector<std::string>& gone) const {
  return !job_.has_ended() && !OfNode(0, gone).empty();
}

LobbyOrder CoordinatorState::OrderOf(const ElasticAction& action) const {
  constexpr LobbyOrder::Kind kKinds[] = {LobbyOrder::Kind::kStart, LobbyOrder::Kind::kStop,
                                         LobbyOrder::Kind::kPark, LobbyOrder::Kind::kDismiss,
                                         LobbyOrder::Kind::kEnd};
  LobbyOrder order{.kind = kKinds[static_cast<size_t>(action.kind)],
                   .attempt = action.attempt,
                   .save = action.save,
                   .job_goes_on = action.job_goes_on,
                   .code = action.code,
                   .text = action.why,
                   .failures = action.failures};
  for (const int id : action.nodes) {
    const auto agent = agents_.find(id);
    if (agent != agents_.end()) {
      order.names.push_back(agent->second.name);
      order.nodes.push_back(agent->second.node);
    }
  }
  return order;
}

int CoordinatorState::IdOf(const std::string& name) const {
  const auto found = std::find_if(agents_.begin(), agents_.end(),
                                  [&](const auto& agent) { return agent.second.name == name; });
  return found == agents_.end() ? -1 : found->first;
}

void CoordinatorState::CollectOrders() {
  for (const ElasticAction& action : job_.TakeActions()) {
    nodes_changed_ = true;
    orders_.push_back(OrderOf(action));
    NoteDismissal(orders_.back());
  }
}

void CoordinatorState::NoteDismissal(const LobbyOrder& order) {
  if (order.kind != LobbyOrder::Kind::kDismiss || order.nodes.empty()) {
    return;
  }
  const ElasticNode& node = order.nodes.front();
  gone_[node.number] = {.node = node,
                        .state = order.code == kExitTemporary ? "lost"
                                 : order.code == kExitStop    ? "out"
                                                              : "left",
                        .why = order.text};
}

std::optional<LobbyNodes> CoordinatorState::TakeNodes() {
  if (!std::exchange(nodes_changed_, false)) {
    return std::nullopt;
  }
  LobbyNodes nodes{.attempt = job_.world().empty() ? -1 : job_.attempt()};
  std::set<int> numbers;
  for (const ElasticJob::Standing& standing : job_.Standings()) {
    numbers.insert(standing.node.number);
    nodes.rows.push_back({.node = standing.node,
                          .place = standing.place,
                          .state = standing.is_leaving       ? "leaving"
                                   : standing.place >= 0     ? "trains"
                                   : !standing.aside.empty() ? "aside"
                                   : nodes.attempt >= 0      ? "spare"
                                                             : "waiting",
                          .why = standing.aside});
  }
  for (const auto& [number, row] : gone_) {
    if (numbers.count(number) == 0) {  // It has not come back.
      nodes.rows.push_back(row);
    }
  }
  return nodes;
}

std::vector<LobbyOrder> CoordinatorState::TakeOrders() {
  CollectOrders();
  return std::exchange(orders_, {});
}

}  // namespace dtrain::launcher
