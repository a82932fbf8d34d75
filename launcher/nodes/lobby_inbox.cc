#include "launcher/nodes/lobby_inbox.h"

#include <algorithm>
#include <utility>

namespace dtrain::launcher {
namespace {

std::optional<LobbyOrder> TakeFirst(std::deque<LobbyOrder>& orders) {
  if (orders.empty()) {
    return std::nullopt;
  }
  LobbyOrder order = std::move(orders.front());
  orders.pop_front();
  return order;
}

}  // namespace

bool LobbyInbox::IsForMe(const LobbyOrder& order) const {
  return std::count(order.names.begin(), order.names.end(), name_) > 0;
}

// A coordinator does not know its own term.
void LobbyInbox::NoteJobTerm(LobbyOrder& order) {
  if (order.failures.job_term == 0) {
    order.failures.job_term = order.term;
  }
  job_term_ = order.failures.job_term;
}

void LobbyInbox::Take(LobbyOrder order) {
  switch (order.kind) {
    case LobbyOrder::Kind::kAnswer:
      if (!order.names.empty() && order.names.front() == name_) {
        answers_.push_back(std::move(order));
      }
      return;
    case LobbyOrder::Kind::kStop:
      stops_.push_back(std::move(order));
      return;
    case LobbyOrder::Kind::kPark:
      if (IsForMe(order)) {
        NoteJobTerm(order);
        orders_.push_back(std::move(order));
      }
      return;
    case LobbyOrder::Kind::kDismiss:
      dismissed_.insert(dismissed_.end(), order.names.begin(), order.names.end());
      if (IsForMe(order)) {
        stops_.push_back(order);
        orders_.push_back(std::move(order));
      }
      return;
    case LobbyOrder::Kind::kEnd:
    case LobbyOrder::Kind::kGiveUp:
      ended_ = true;
      stops_.push_back(order);
      orders_.push_back(std::move(order));
      return;
    case LobbyOrder::Kind::kStart:
      NoteJobTerm(order);
      memory_ = {order.attempt, order.term, order.nodes, order.failures, std::nullopt};
      stops_.push_back(order);
      if (IsForMe(order)) {
        orders_.push_back(std::move(order));
      }
      return;
  }
}

std::optional<LobbyOrder> LobbyInbox::TakeStop(int attempt) {
  while (!stops_.empty()) {
    LobbyOrder order = std::move(stops_.front());
    stops_.pop_front();
    const bool is_start = order.kind == LobbyOrder::Kind::kStart;
    const bool is_stop = order.kind == LobbyOrder::Kind::kStop;
    const bool is_later = std::pair(order.term, order.attempt) > std::pair(begun_term_, attempt);
    if ((is_start && is_later) || (is_stop && order.attempt == attempt) ||
        (!is_start && !is_stop)) {
      return order;
    }
  }
  return std::nullopt;
}

std::optional<LobbyOrder> LobbyInbox::Next() {
  std::optional<LobbyOrder> order = TakeFirst(orders_);
  if (order.has_value() && order->kind == LobbyOrder::Kind::kStart) {
    begun_term_ = order->term;
  }
  return order;
}

std::optional<LobbyOrder> LobbyInbox::TakeAnswer() { return TakeFirst(answers_); }

bool LobbyInbox::HasLeft(const std::string& name) const {
  return ended_ || std::count(dismissed_.begin(), dismissed_.end(), name) > 0;
}

void LobbyInbox::NoteReport(const NodeReport& report) {
  if (memory_.has_value() && memory_->attempt == report.attempt && memory_->term == begun_term_) {
    memory_->report = report;
  }
}

}  // namespace dtrain::launcher
