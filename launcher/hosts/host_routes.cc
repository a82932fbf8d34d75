#include "launcher/hosts/host_routes.h"

#include <algorithm>

#include "base/deadline.h"
#include "base/status.h"

namespace dtrain::launcher {

HostRoutes::HostRoutes(const std::vector<HostPlan>& plans, absl::Duration answer_time)
    : answer_time_(answer_time) {
  for (const HostPlan& plan : plans) {
    const int parent = plan.place.parent;
    if (parent >= 0 && inner_.count(parent) == 0) {
      inner_[parent].plan = plans[static_cast<size_t>(parent)];
    }
  }
}

// The first node that can start others, from `node` on towards here; nothing while one may yet.
std::optional<int> HostRoutes::WayUp(int node) const {
  while (node != kFromHere) {
    const Inner& inner = inner_.at(node);
    if (inner.relay == nullptr || inner.relay->state() == RelayLink::State::kStarting) {
      return std::nullopt;
    }
    if (inner.relay->state() == RelayLink::State::kReady) {
      return node;
    }
    node = inner.plan.place.parent;
  }
  return kFromHere;
}

std::optional<int> HostRoutes::WayTo(const HostPlan& plan) const {
  const int node = plan.job.node_rank;
  return WayUp(inner_.count(node) > 0 ? node : plan.place.parent);
}

absl::StatusOr<std::unique_ptr<AgentProcess>> HostRoutes::Start(const HostPlan& plan, int way) {
  if (way == kFromHere) {
    return LocalProcess::Start(plan.command);
  }
  const bool is_own = way == plan.job.node_rank;
  return inner_.at(way).relay->Start(is_own ? std::vector<std::string>() : plan.command);
}

std::string HostRoutes::SshFrom(const HostPlan& plan, int way) const {
  if (way == kFromHere) {
    return "";
  }
  const Inner& inner = inner_.at(way);
  return way == plan.job.node_rank ? inner.from : inner.plan.host;
}

absl::Status HostRoutes::Connect() {
  for (auto& [node, inner] : inner_) {
    const std::optional<int> way = WayUp(inner.plan.place.parent);
    if (inner.relay != nullptr || !way.has_value()) {
      continue;
    }
    DT_ASSIGN_OR_RETURN(std::unique_ptr<AgentProcess> process,
                        *way == kFromHere ? LocalProcess::Start(inner.plan.command)
                                          : inner_.at(*way).relay->Start(inner.plan.command));
    inner.from = *way == kFromHere ? "" : inner_.at(*way).plan.host;
    inner.relay =
        std::make_unique<RelayLink>(inner.plan.host, std::move(process), inner.plan.job.directory,
                                    Deadline::After(answer_time_));
  }
  return absl::OkStatus();
}

void HostRoutes::Move(StarterConsole& console) {
  for (auto& [node, inner] : inner_) {
    if (inner.relay != nullptr) {
      inner.relay->Move(console);
    }
  }
}

void HostRoutes::AddTo(std::vector<pollfd>& entries, bool may_read) const {
  for (const auto& [node, inner] : inner_) {
    if (inner.relay != nullptr) {
      inner.relay->AddTo(entries, may_read);
    }
  }
}

void HostRoutes::HangUp() {
  for (auto& [node, inner] : inner_) {
    if (inner.relay != nullptr) {
      inner.relay->HangUp();
    }
  }
}

void HostRoutes::Kill() {
  for (auto& [node, inner] : inner_) {
    if (inner.relay != nullptr) {
      inner.relay->Kill();
    }
  }
}

bool HostRoutes::AllEnded() const {
  return std::all_of(inner_.begin(), inner_.end(), [](const auto& entry) {
    return entry.second.relay == nullptr || entry.second.relay->has_ended();
  });
}

}  // namespace dtrain::launcher
