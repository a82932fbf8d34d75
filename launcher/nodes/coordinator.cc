#include "launcher/nodes/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/threads/worker.h"
#include "launcher/nodes/peers.h"

namespace dtrain::launcher {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);
constexpr absl::Duration kFarewell = absl::Seconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Start(const CoordinatorOptions& options) {
  std::unique_ptr<Coordinator> coordinator(new Coordinator(options));
  comm::StoreServerOptions serving;
  serving.heard = [raw = coordinator.get()](const comm::Hello& hello) {
    std::lock_guard lock(raw->mutex_);
    raw->heard_.insert(hello.name);
  };
  serving.gone = [raw = coordinator.get()](const comm::Hello& hello) {
    std::lock_guard lock(raw->mutex_);
    raw->gone_.push_back(hello.name);
  };
  auto server = comm::StoreServer::Create(options.endpoint.host, options.endpoint.port, options.key,
                                          kLobbyEpoch, serving);
  DT_RETURN_IF_ERROR(Annotate(
      server.status(), absl::StrFormat("node 0 cannot serve --rdzv-endpoint %s (it must be an "
                                       "address of this host, and a free port)",
                                       options.endpoint.ToString())));
  coordinator->server_ = *std::move(server);
  DT_ASSIGN_OR_RETURN(coordinator->store_,
                      comm::StoreClient::Connect(coordinator->endpoint(), options.key,
                                                 {.epoch = kLobbyEpoch,
                                                  .role = comm::Hello::Role::kAgent,
                                                  .id = 0,
                                                  .name = "the coordinator"},
                                                 Deadline::After(kStoreCallTimeout)));
  coordinator->thread_ = std::thread([raw = coordinator.get()] { raw->Run(); });
  return coordinator;
}

Coordinator::Coordinator(const CoordinatorOptions& options)
    : options_(options), job_(options.job, Clock::Real().MonotonicNanos()) {}

Coordinator::~Coordinator() {
  if (!thread_.joinable()) {
    return;  // It was not started.
  }
  for (const Deadline deadline = Deadline::After(kFarewell);
       server_->clients() > 1 && !deadline.Expired();) {
    Clock::Real().Sleep(absl::Milliseconds(5));
  }
  stop_ = true;
  store_->Close();
  thread_.join();
}

void Coordinator::Run() {
  PrepareThread("dtrain-coord", /*low_priority=*/false);
  int64_t next = 1;
  int64_t before = Clock::Real().MonotonicNanos();
  while (!stop_) {
    absl::Status status = ReadMessage(next);
    const int64_t now = Clock::Real().MonotonicNanos();
    TakeLosses(now, absl::Nanoseconds(now - before));
    before = now;
    job_.Tick(now);
    if (status.ok()) {
      status = Publish();
    }
    if (!status.ok() && !stop_) {
      DT_LOG(Error) << "the coordinator cannot go on: " << status.message();
      return;
    }
  }
}

absl::Status Coordinator::ReadMessage(int64_t& next) {
  const auto text = store_->Get(LobbyInboxKey(next), Deadline::After(kTick));
  if (absl::IsDeadlineExceeded(text.status())) {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(text.status());
  ++next;
  DT_RETURN_IF_ERROR(store_->Add("lobby/read", 1, Deadline::After(kStoreCallTimeout)).status());
  const absl::StatusOr<LobbyMessage> message = LobbyMessage::Parse(*text);
  if (!message.ok()) {  // Only holders of the token post, so this is another version of dtrain.
    DT_LOG(Warning) << message.status().message();
    return absl::OkStatus();
  }
  const int64_t now = Clock::Real().MonotonicNanos();
  if (message->kind == LobbyMessage::Kind::kJoin) {
    TakeLosses(now,
               absl::ZeroDuration());  // A node may be started again at once: its end is first.
  }
  Handle(*message, now);
  return absl::OkStatus();
}

int Coordinator::IdOf(const std::string& name) const {
  const auto found = std::find_if(agents_.begin(), agents_.end(),
                                  [&](const auto& agent) { return agent.second.name == name; });
  return found == agents_.end() ? -1 : found->first;
}

void Coordinator::Handle(const LobbyMessage& message, int64_t now) {
  const int id = message.kind == LobbyMessage::Kind::kJoin ? next_id_++ : IdOf(message.from);
  switch (message.kind) {
    case LobbyMessage::Kind::kJoin:
      agents_[id] = {message.from};
      nodes_[id] = message.node;
      job_.Join(id, message.node, now);
      return;
    case LobbyMessage::Kind::kReport:
      job_.Report(id, message.report, now);
      return;
    case LobbyMessage::Kind::kLeave:
      job_.Leave(id, now);
      return;
    case LobbyMessage::Kind::kStop:
      job_.Stop(message.signal, now);
      return;
    case LobbyMessage::Kind::kDrain:
      Drain(message, now);
      return;
  }
}

void Coordinator::Drain(const LobbyMessage& message, int64_t now) {
  std::vector<int> found;
  std::vector<std::string> known;
  int number = -1;
  const bool is_number = absl::SimpleAtoi(message.target, &number);
  for (const auto& [id, agent] : agents_) {
    const ElasticNode& node = nodes_.at(id);
    known.push_back(node.Name());
    if (is_number ? node.number == number : node.host == message.target) {
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
    const int id = found.front();
    const absl::Status status = job_.Drain(id, now);
    answer.code = status.ok() ? kExitOk : kExitUsage;
    answer.text = status.ok() ? nodes_.at(id).Name() : std::string(status.message());
    answer.names.push_back(agents_.at(id).name);
  }
  Send(answer).IgnoreError();  // An error of the store shows at the next call too.
}

void Coordinator::TakeLosses(int64_t now, absl::Duration passed) {
  // More than this between two ticks is time in which this process did not run.
  constexpr absl::Duration kPassedMax = absl::Milliseconds(200);
  std::set<std::string> heard;
  std::vector<std::string> gone;
  {
    std::lock_guard lock(mutex_);
    heard.swap(heard_);
    gone.swap(gone_);
  }
  std::vector<std::pair<int, std::string>> lost;
  std::vector<std::string> names;
  for (auto& [id, agent] : agents_) {
    agent.silent = heard.count(agent.name) > 0 ? absl::ZeroDuration()
                                               : agent.silent + std::min(passed, kPassedMax);
    if (std::count(gone.begin(), gone.end(), agent.name) > 0) {
      lost.emplace_back(id, "the connection of its agent has ended");
    } else if (agent.silent > options_.silence) {
      lost.emplace_back(id, absl::StrFormat("its agent has been silent for %s",
                                            absl::FormatDuration(options_.silence)));
    } else {
      continue;
    }
    names.push_back(agent.name);
  }
  // They come back as other agents if they live after all, and whoever drains one learns of it.
  if (!names.empty()) {
    Send({.kind = LobbyOrder::Kind::kDismiss, .names = names, .code = kExitTemporary})
        .IgnoreError();
  }
  for (const auto& [id, why] : lost) {
    agents_.erase(id);
    nodes_.erase(id);
    job_.Lose(id, why, now);
  }
}

LobbyOrder Coordinator::OrderOf(const ElasticAction& action) const {
  constexpr LobbyOrder::Kind kKinds[] = {LobbyOrder::Kind::kStart, LobbyOrder::Kind::kStop,
                                         LobbyOrder::Kind::kPark, LobbyOrder::Kind::kDismiss,
                                         LobbyOrder::Kind::kEnd};
  LobbyOrder order{.kind = kKinds[static_cast<size_t>(action.kind)],
                   .attempt = action.attempt,
                   .save = action.save,
                   .code = action.code,
                   .text = action.why};
  for (const int id : action.nodes) {
    const auto agent = agents_.find(id);
    if (agent != agents_.end()) {
      order.names.push_back(agent->second.name);
      order.nodes.push_back(nodes_.at(id));
    }
  }
  return order;
}

absl::Status Coordinator::Publish() {
  for (const ElasticAction& action : job_.TakeActions()) {
    DT_RETURN_IF_ERROR(Send(OrderOf(action)));
  }
  return absl::OkStatus();
}

absl::Status Coordinator::Send(const LobbyOrder& order) {
  const Deadline deadline = Deadline::After(kStoreCallTimeout);
  DT_RETURN_IF_ERROR(store_->Set(LobbyOrderKey(next_order_++), order.Encode(), deadline));
  return store_->Add("lobby/orders", 1, deadline).status();
}

}  // namespace dtrain::launcher
