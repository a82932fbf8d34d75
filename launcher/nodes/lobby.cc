#include "launcher/nodes/lobby.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"
#include "base/threads/worker.h"
#include "launcher/nodes/node_zero.h"
#include "launcher/nodes/peers.h"

namespace dtrain::launcher {
namespace {

// The coordinator hears at least so often that an agent lives.
constexpr absl::Duration kBeat = absl::Milliseconds(150);

// A node that is started again has another name.
absl::StatusOr<std::string> UniqueName(int number) {
  std::array<uint8_t, 6> bytes{};
  DT_RETURN_IF_ERROR(comm::RandomBytes(absl::MakeSpan(bytes)));
  return absl::StrFormat("node %d #%s", number,
                         absl::BytesToHexString(absl::string_view(
                             reinterpret_cast<const char*>(bytes.data()), bytes.size())));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LobbyAgent>> LobbyAgent::Join(
    const LobbyJoin& join, const std::function<int()>& cancelled) {
  DT_ASSIGN_OR_RETURN(const std::string name, UniqueName(join.node.number));
  const comm::Hello hello{.epoch = kLobbyEpoch,
                          .role = comm::Hello::Role::kAgent,
                          .id = join.node.number,
                          .name = name};
  DT_ASSIGN_OR_RETURN(auto store, ConnectToNodeZero(join.endpoint, join.key, hello,
                                                    Deadline::After(join.timeout), cancelled));
  UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) {
    return ErrnoStatus(errno, "eventfd");
  }
  DT_ASSIGN_OR_RETURN(const int64_t orders,
                      store->Add("lobby/orders", 0, Deadline::After(kStoreCallTimeout)));
  std::unique_ptr<LobbyAgent> agent(new LobbyAgent(std::move(store), name, std::move(event)));
  agent->thread_ = std::thread([raw = agent.get(), orders] { raw->Run(orders + 1); });
  DT_RETURN_IF_ERROR(agent->Post({.kind = LobbyMessage::Kind::kJoin, .node = join.node}));
  return agent;
}

LobbyAgent::LobbyAgent(std::unique_ptr<comm::StoreClient> store, std::string name, UniqueFd event)
    : store_(std::move(store)), name_(std::move(name)), event_(std::move(event)) {}

LobbyAgent::~LobbyAgent() {
  stop_ = true;
  store_->Close();
  thread_.join();
}

// Takes the first number that no other agent has. With a counter, an agent that dies between two
// calls would leave a number for which the coordinator waits for ever.
absl::Status LobbyAgent::Post(LobbyMessage message) {
  message.from = name_;
  const std::string text = message.Encode();
  const Deadline deadline = Deadline::After(kStoreCallTimeout);
  DT_ASSIGN_OR_RETURN(int64_t number, store_->Add("lobby/read", 0, deadline));
  while (true) {
    DT_ASSIGN_OR_RETURN(const auto posted, store_->CompareExchange(LobbyInboxKey(++number),
                                                                   std::nullopt, text, deadline));
    if (posted.exchanged) {
      return absl::OkStatus();
    }
  }
}

absl::Status LobbyAgent::Tell(const std::string& key, const std::string& value) {
  return store_->Set(key, value, Deadline::After(kStoreCallTimeout));
}

absl::StatusOr<std::string> LobbyAgent::Ask(const std::string& key, Deadline deadline) {
  return store_->Get(key, deadline);
}

void LobbyAgent::Run(int64_t next) {
  PrepareThread("dtrain-lobby", /*low_priority=*/false);
  while (!stop_) {
    const auto text = store_->Get(LobbyOrderKey(next), Deadline::After(kBeat));
    if (absl::IsDeadlineExceeded(text.status())) {
      continue;
    }
    const absl::StatusOr<LobbyOrder> order =
        text.ok() ? LobbyOrder::Parse(*text) : absl::StatusOr<LobbyOrder>(text.status());
    std::lock_guard lock(mutex_);
    if (order.ok()) {
      Take(*order);
      ++next;
    } else {
      DT_LOG(Debug) << "the lobby of the job: " << order.status().message();
      health_ = absl::UnavailableError("node 0, which has the job's coordinator, is lost");
    }
    changed_.notify_all();
    (void)eventfd_write(event_.get(), 1);
    if (!order.ok()) {
      return;
    }
  }
}

bool LobbyAgent::IsForMe(const LobbyOrder& order) const {
  return std::count(order.names.begin(), order.names.end(), name_) > 0;
}

void LobbyAgent::Take(LobbyOrder order) {
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
      ended_ = true;
      stops_.push_back(order);
      orders_.push_back(std::move(order));
      return;
    case LobbyOrder::Kind::kStart:
      stops_.push_back(order);
      if (IsForMe(order)) {
        orders_.push_back(std::move(order));
      }
      return;
  }
}

absl::StatusOr<std::optional<LobbyOrder>> LobbyAgent::Next(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                    [this] { return !orders_.empty() || !health_.ok(); });
  if (!orders_.empty()) {
    LobbyOrder order = std::move(orders_.front());
    orders_.pop_front();
    return std::optional(std::move(order));
  }
  DT_RETURN_IF_ERROR(health_);
  return std::optional<LobbyOrder>();
}

std::optional<LobbyOrder> LobbyAgent::TakeStop(int attempt) {
  eventfd_t ignored = 0;
  (void)eventfd_read(event_.get(), &ignored);
  std::lock_guard lock(mutex_);
  while (!stops_.empty()) {
    LobbyOrder order = std::move(stops_.front());
    stops_.pop_front();
    const bool is_start = order.kind == LobbyOrder::Kind::kStart;
    const bool is_stop = order.kind == LobbyOrder::Kind::kStop;
    if ((is_start && order.attempt > attempt) || (is_stop && order.attempt == attempt) ||
        (!is_start && !is_stop)) {
      return order;
    }
  }
  return std::nullopt;
}

absl::StatusOr<LobbyOrder> LobbyAgent::AwaitAnswer(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                    [this] { return !answers_.empty() || !health_.ok(); });
  if (!answers_.empty()) {
    LobbyOrder answer = std::move(answers_.front());
    answers_.pop_front();
    return answer;
  }
  DT_RETURN_IF_ERROR(health_);
  return absl::DeadlineExceededError("the coordinator does not answer");
}

absl::Status LobbyAgent::AwaitDismissal(const std::string& name, absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  const auto has_left = [&] {
    return ended_ || std::count(dismissed_.begin(), dismissed_.end(), name) > 0;
  };
  changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                    [&] { return has_left() || !health_.ok(); });
  return has_left()     ? absl::OkStatus()
         : health_.ok() ? absl::DeadlineExceededError("the node has not left yet")
                        : health_;
}

absl::Status LobbyAgent::health() const {
  std::lock_guard lock(mutex_);
  return health_;
}

}  // namespace dtrain::launcher
