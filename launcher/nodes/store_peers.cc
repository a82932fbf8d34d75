#include "launcher/nodes/store_peers.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/threads/worker.h"
#include "launcher/nodes/ask_store.h"
#include "launcher/nodes/node_tree.h"

namespace dtrain::launcher {
namespace {

constexpr absl::Duration kGoodbyeTimeout = absl::Seconds(2);
// Node 0 looks so often whose connection has ended.
constexpr absl::Duration kConnectionsLook = absl::Milliseconds(200);
// Who asks waits no longer for an answer.
constexpr absl::Duration kAnswerSendTime = absl::Seconds(1);

std::string BeatKey(int node) { return absl::StrCat("launch/beat/", node); }
std::string ShareKey(int node) { return absl::StrCat("launch/share/", node); }
std::string GoodbyeKey(int node) { return absl::StrCat("launch/goodbye/", node); }

}  // namespace

std::string AgentNameKey(int node) { return absl::StrCat("launch/agent/", node); }
std::string HostKey(int node) { return absl::StrCat("launch/host/", node); }
std::string AnswerKey(const std::string& answers, int node) {
  return absl::StrCat(answers, "/", node);
}

absl::StatusOr<std::unique_ptr<StorePeers>> StorePeers::Create(
    std::unique_ptr<comm::StoreClient> store, const StorePeersOptions& options) {
  UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) {
    return ErrnoStatus(errno, "eventfd");
  }
  return std::unique_ptr<StorePeers>(new StorePeers(std::move(store), options, std::move(event)));
}

StorePeers::StorePeers(std::unique_ptr<comm::StoreClient> store, const StorePeersOptions& options,
                       UniqueFd event)
    : store_(std::move(store)),
      options_(options),
      event_(std::move(event)),
      own_beat_nanos_(options.clock.MonotonicNanos()),
      // A look follows another one by an interval and the time of its calls.
      awake_(own_beat_nanos_, 2 * options.beat_interval),
      below_(NodesBelow(options.node, options.nodes)) {
  beats_.resize(static_cast<size_t>(options_.nodes), Beat{0, own_beat_nanos_});
  if (options_.gone != nullptr) {
    // While agents join, one may have tried to connect before under the name that it has now.
    options_.gone->Take();
  }
  thread_ = std::thread([this] { Run(); });
}

StorePeers::~StorePeers() {
  const Deadline deadline = Deadline::After(kGoodbyeTimeout);
  if (health().ok() && store_->Set(GoodbyeKey(options_.node), "1", deadline).ok() &&
      options_.node == 0) {
    std::vector<std::string> goodbyes;
    for (int node = 1; node < options_.nodes; ++node) {
      goodbyes.push_back(GoodbyeKey(node));
    }
    // A node that is late finds the coordinator lost.
    store_->Wait(goodbyes, deadline).IgnoreError();
  }
  stop_ = true;
  store_->Close();
  thread_.join();
}

void StorePeers::Run() {
  PrepareThread("dtrain-peers", false);
  int64_t next = 1;
  while (!stop_) {
    const int64_t before = next;
    absl::Status status = ReadOrder(next);
    if (status.ok() && next == before) {  // What an agent has said counts before its end does.
      status = WatchConnections();
    }
    if (status.ok()) {
      status = WatchBeats();
    }
    if (!status.ok() && !stop_) {
      Fail(status);
      return;
    }
  }
}

// Waits for the next order until something else is due.
absl::Status StorePeers::ReadOrder(int64_t& next) {
  const absl::Duration wait = options_.gone == nullptr
                                  ? options_.beat_interval
                                  : std::min(options_.beat_interval, kConnectionsLook);
  const auto text = store_->Get(comm::ListItemKey(kOrderList, next), Deadline::After(wait));
  if (absl::IsDeadlineExceeded(text.status())) {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(Annotate(text.status(), "the coordinator on node 0 is lost"));
  ++next;
  DT_ASSIGN_OR_RETURN(const Order order, Order::Parse(*text));
  return order.node != options_.node ? ReadOrdered(order) : absl::OkStatus();
}

// The views that an order kLook tells of are read with it.
absl::Status StorePeers::ReadOrdered(const Order& order) {
  if (order.kind == Order::Kind::kLook) {
    if (std::find(below_.begin(), below_.end(), order.node) == below_.end()) {
      return absl::OkStatus();
    }
    DT_RETURN_IF_ERROR(ReadShared({order.node}));
  }
  std::lock_guard lock(mutex_);
  orders_.push_back(order);
  Wake();
  return absl::OkStatus();
}

// An agent whose connection ends without a goodbye is lost. Another one that took itself for its
// node was refused, and ends too.
absl::Status StorePeers::WatchConnections() {
  if (options_.gone == nullptr) {
    return absl::OkStatus();
  }
  for (const comm::Hello& agent : options_.gone->Take()) {
    const std::vector<std::string> keys = {AgentNameKey(agent.id), GoodbyeKey(agent.id)};
    DT_ASSIGN_OR_RETURN(
        const std::vector<bool> is_there,
        AskStore([this, &keys](Deadline deadline) { return store_->Check(keys, deadline); }));
    if (!is_there[0] || is_there[1]) {
      continue;
    }
    DT_ASSIGN_OR_RETURN(const std::string name, AskStore([this, &keys](Deadline deadline) {
                          return store_->Get(keys[0], deadline);
                        }));
    if (name == agent.name) {
      return absl::UnavailableError(
          absl::StrFormat("node %d is lost: the connection of its agent has ended", agent.id));
    }
  }
  return absl::OkStatus();
}

absl::Status StorePeers::WatchBeats() {
  const int64_t now = options_.clock.MonotonicNanos();
  const int64_t awake = awake_.Look(now);
  if (now - own_beat_nanos_ < absl::ToInt64Nanoseconds(options_.beat_interval)) {
    return absl::OkStatus();
  }
  own_beat_nanos_ = now;
  DT_RETURN_IF_ERROR(Annotate(AskStore([this](Deadline deadline) {
                                return store_->Add(BeatKey(options_.node), 1, deadline);
                              }).status(),
                              "the coordinator on node 0 is lost"));
  DT_RETURN_IF_ERROR(ReadShared(below_));
  return options_.node == 0 ? LookAtBeats(awake) : SendShared();
}

// Node 0 looks whose beats go on.
absl::Status StorePeers::LookAtBeats(int64_t awake_nanos) {
  const Deadline deadline = Deadline::After(kStoreCallTimeout);
  std::vector<std::string> goodbyes;
  for (int node = 0; node < options_.nodes; ++node) {
    goodbyes.push_back(GoodbyeKey(node));
  }
  const std::vector<bool> gone_well =
      store_->Check(goodbyes, deadline).value_or(std::vector<bool>(goodbyes.size()));
  for (int node = 1; node < options_.nodes; ++node) {
    DT_ASSIGN_OR_RETURN(const int64_t count, AskStore([this, node](Deadline limit) {
                          return store_->Add(BeatKey(node), 0, limit);
                        }));
    Beat& beat = beats_[static_cast<size_t>(node)];
    if (count != beat.count || gone_well[static_cast<size_t>(node)]) {
      beat = {count, awake_nanos};
    } else if (awake_nanos - beat.seen_nanos > absl::ToInt64Nanoseconds(options_.beat_timeout)) {
      return absl::UnavailableError(
          absl::StrFormat("node %d is lost: its agent has been silent for %s", node,
                          absl::FormatDuration(options_.beat_timeout)));
    }
  }
  return absl::OkStatus();
}

absl::Status StorePeers::SendShared() {
  std::string summary;
  {
    const std::lock_guard lock(mutex_);
    summary.swap(to_share_);
  }
  return summary.empty()
             ? absl::OkStatus()
             : Annotate(AskStore([this, &summary](Deadline deadline) {
                          return store_->Set(ShareKey(options_.node), summary, deadline);
                        }),
                        "the coordinator on node 0 is lost");
}

// Reads what `nodes`, which are directly below this one in the tree, have shared.
absl::Status StorePeers::ReadShared(const std::vector<int>& nodes) {
  if (nodes.empty()) {
    return absl::OkStatus();
  }
  std::vector<std::string> keys;
  for (const int node : nodes) {
    keys.push_back(ShareKey(node));
  }
  DT_ASSIGN_OR_RETURN(const std::vector<bool> is_there, AskStore([this, &keys](Deadline deadline) {
                        return store_->Check(keys, deadline);
                      }));
  std::vector<std::pair<int, std::string>> read;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (is_there[i]) {
      DT_ASSIGN_OR_RETURN(std::string summary, AskStore([this, &keys, i](Deadline deadline) {
                            return store_->Get(keys[i], deadline);
                          }));
      read.emplace_back(nodes[i], std::move(summary));
    }
  }
  if (!read.empty()) {
    const std::lock_guard lock(mutex_);
    for (auto& summary : read) {
      shared_.push_back(std::move(summary));
    }
    Wake();
  }
  return absl::OkStatus();
}

void StorePeers::Share(std::string summary) {
  const std::lock_guard lock(mutex_);
  to_share_ = std::move(summary);
}

void StorePeers::ShareAtOnce(std::string summary) {
  {
    const std::lock_guard lock(mutex_);
    to_share_.clear();  // It is older.
  }
  const absl::Status sent =
      store_->Set(ShareKey(options_.node), summary, Deadline::After(kGoodbyeTimeout));
  if (sent.ok()) {  // Else the next order tells of a lost store.
    Publish({.kind = Order::Kind::kLook});
  }
}

std::vector<std::pair<int, std::string>> StorePeers::TakeShared() {
  const std::lock_guard lock(mutex_);
  return std::exchange(shared_, {});
}

// An answer that does not arrive is that of a node which does not answer.
void StorePeers::Answer(const Order& question, const std::string& text) {
  store_->Set(AnswerKey(question.answers, options_.node), text, Deadline::After(kAnswerSendTime))
      .IgnoreError();
}

void StorePeers::Fail(const absl::Status& status) {
  std::lock_guard lock(mutex_);
  // After any error the exit code is 75, because a restart helps.
  health_ = absl::UnavailableError(status.message());
  Wake();
}

void StorePeers::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(event_.get(), &one, sizeof(one));
}

std::vector<Order> StorePeers::Take() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(event_.get(), &count, sizeof(count));
  std::lock_guard lock(mutex_);
  return std::exchange(orders_, {});
}

absl::Status StorePeers::health() const {
  std::lock_guard lock(mutex_);
  return health_;
}

void StorePeers::Publish(Order order) {
  order.node = options_.node;
  // One call, because all would wait for a number whose agent has died before it gave the order.
  const absl::Status status =
      store_->Append(kOrderList, order.Encode(), Deadline::After(kGoodbyeTimeout)).status();
  if (!status.ok()) {
    Fail(Annotate(status, "the coordinator on node 0 is lost"));
  }
}

}  // namespace dtrain::launcher
