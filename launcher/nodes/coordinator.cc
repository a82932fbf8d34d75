#include "launcher/nodes/coordinator.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/threads/worker.h"
#include "launcher/hosts/node_messages.h"
#include "launcher/nodes/ask_store.h"
#include "launcher/nodes/awake_time.h"
#include "launcher/nodes/node_zero.h"
#include "launcher/nodes/peers.h"

namespace dtrain::launcher {
namespace {

constexpr absl::Duration kWaitForMessage = absl::Milliseconds(50);
// The limits of the job are about agents: time in which the coordinator did not run, and read
// nothing of what they sent, does not count against them.
constexpr absl::Duration kLookMax = absl::Milliseconds(200);
// The list of nodes, which people read, is written at most so often.
constexpr absl::Duration kTellNodes = absl::Milliseconds(200);
constexpr int kMessagesMax = 1 << 16;  // One look reads no more. An agent posts a few.

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
  if (!server.ok()) {
    return CannotServe(options.endpoint, server.status());
  }
  coordinator->server_ = *std::move(server);
  DT_ASSIGN_OR_RETURN(coordinator->store_, coordinator->Connect());
  DT_RETURN_IF_ERROR(
      coordinator->store_->Set(kLobbyVersionKey, OwnVersion(), Deadline::After(kStoreCallTimeout)));
  // Agents compare terms of one host's clock, in microseconds.
  DT_RETURN_IF_ERROR(coordinator->store_->Set(
      kLobbyTermKey, absl::StrCat(absl::ToUnixMicros(options.clock.WallTime())),
      Deadline::After(kStoreCallTimeout)));
  coordinator->thread_ = std::thread([raw = coordinator.get()] { raw->Run(); });
  return coordinator;
}

absl::StatusOr<std::unique_ptr<comm::StoreClient>> Coordinator::Connect() const {
  return comm::StoreClient::Connect(
      endpoint(), options_.key,
      {.epoch = kLobbyEpoch, .role = comm::Hello::Role::kAgent, .id = 0, .name = "the coordinator"},
      Deadline::After(kStoreCallTimeout));
}

Coordinator::Coordinator(const CoordinatorOptions& options)
    : options_(options), state_(options.job, options.silence, options.clock.MonotonicNanos()) {}

Coordinator::~Coordinator() {
  if (!thread_.joinable()) {
    return;  // It was not started.
  }
  for (const Deadline deadline = Deadline::After(options_.farewell);
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
  int64_t before = options_.clock.MonotonicNanos();
  AwakeTime awake(before, kLookMax);
  while (!stop_) {
    LobbyNews news;
    absl::Status status = ReadMessage(next, news.messages);
    NoteConnections(news);
    if (status.ok() && !news.gone.empty()) {
      status = ReadRest(next, news.messages);
    }
    if (state_.AwaitsOwnEnd(news.gone)) {
      AwaitOwnEnd();
    }
    const int64_t now = awake.Look(options_.clock.MonotonicNanos());
    news.passed = absl::Nanoseconds(now - before);
    before = now;
    state_.Take(news, now);
    state_.Tick(now);
    if (status.ok()) {
      status = Publish();
    }
    if (!status.ok() && !stop_) {
      GiveUp(status);
      return;
    }
    TellNodes(now);
  }
}

// A large job is not written anew for each node that joins. A failure shows at the next order too.
void Coordinator::TellNodes(int64_t now_nanos) {
  if (told_nanos_ != 0 && now_nanos - told_nanos_ < absl::ToInt64Nanoseconds(kTellNodes)) {
    return;
  }
  if (std::optional<LobbyNodes> nodes = state_.TakeNodes()) {
    told_nanos_ = now_nanos;
    nodes->started_at = options_.started_at;
    store_->Set(kLobbyNodesKey, nodes->Encode(), Deadline::After(kStoreCallTimeout)).IgnoreError();
  }
}

// The connection to its own store may be what is broken, so another one is tried.
void Coordinator::GiveUp(const absl::Status& why) {
  LobbyOrder order{.kind = LobbyOrder::Kind::kGiveUp, .code = kExitTemporary};
  order.text = absl::StrCat("the coordinator on node 0 cannot go on: ", why.message());
  DT_LOG(Error) << order.text;
  if (Send(order).ok()) {
    return;
  }
  --next_order_;
  const auto other = Connect();
  const absl::Status told = other.ok() ? SendBy(**other, order) : other.status();
  if (!told.ok()) {
    DT_LOG(Error) << "the other nodes cannot be told: " << told.message();
  }
}

absl::Status Coordinator::ReadMessage(int64_t& next, std::vector<LobbyMessage>& messages) {
  const std::string key = comm::ListItemKey(kLobbyInbox, next);
  const auto text = store_->Get(key, Deadline::After(kWaitForMessage));
  if (absl::IsDeadlineExceeded(text.status())) {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(text.status());
  // Its text may name each node of the job, and at a change of coordinators each node sends one.
  DT_RETURN_IF_ERROR(
      AskStore([this, &key](Deadline deadline) { return store_->Delete(key, deadline); }).status());
  ++next;
  absl::StatusOr<LobbyMessage> message = LobbyMessage::Parse(*text);
  if (message.ok()) {
    messages.push_back(*std::move(message));
  } else {  // Only holders of the token post, so this is another version of dtrain.
    DT_LOG(Warning) << message.status().message();
  }
  return absl::OkStatus();
}

// All that an agent posts lies in the store before its connection ends.
absl::Status Coordinator::ReadRest(int64_t& next, std::vector<LobbyMessage>& messages) {
  for (int read = 0; read < kMessagesMax; ++read) {
    const std::vector<std::string> key = {comm::ListItemKey(kLobbyInbox, next)};
    DT_ASSIGN_OR_RETURN(const std::vector<bool> is_there, AskStore([this, &key](Deadline deadline) {
                          return store_->Check(key, deadline);
                        }));
    if (!is_there.front()) {
      break;
    }
    DT_RETURN_IF_ERROR(ReadMessage(next, messages));
  }
  return absl::OkStatus();
}

void Coordinator::NoteConnections(LobbyNews& news) {
  const std::lock_guard lock(mutex_);
  news.heard.swap(heard_);
  news.gone.swap(gone_);
}

// An agent's connection may end before the pipe does by which this process learns that the agent is
// dead. An order to end the job, sent between the two, would keep the other nodes from waiting for
// the next coordinator.
void Coordinator::AwaitOwnEnd() const {
  for (const Deadline deadline = Deadline::After(options_.own_end);
       !stop_ && !deadline.Expired();) {
    Clock::Real().Sleep(absl::Milliseconds(5));
  }
}

absl::Status Coordinator::Publish() {
  for (const LobbyOrder& order : state_.TakeOrders()) {
    DT_RETURN_IF_ERROR(Send(order));
  }
  return absl::OkStatus();
}

absl::Status Coordinator::SendBy(comm::StoreClient& store, const LobbyOrder& order) {
  const int64_t number = next_order_++;
  const std::string text = order.Encode();
  DT_RETURN_IF_ERROR(AskStore([&store, &text, number](Deadline deadline) {
    return store.Set(LobbyOrderKey(number), text, deadline);
  }));
  // How many there are. It is set and not counted up, so that the call may be made twice.
  return AskStore([&store, number](Deadline deadline) {
    return store.Set("lobby/orders", absl::StrCat(number), deadline);
  });
}

}  // namespace dtrain::launcher
