#include "launcher/nodes/lobby.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"
#include "base/threads/worker.h"
#include "launcher/nodes/ask_store.h"
#include "launcher/nodes/node_zero.h"
#include "launcher/nodes/peers.h"

namespace dtrain::launcher {
namespace {

// The coordinator hears at least so often that an agent lives.
constexpr absl::Duration kBeat = absl::Milliseconds(150);
constexpr absl::Duration kReserveCallTime = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<LobbyAgent>> LobbyAgent::Join(
    const LobbyJoin& join, const std::function<int()>& cancelled) {
  DT_ASSIGN_OR_RETURN(const std::string name, UniqueAgentName(join.node.number));
  UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) {
    return ErrnoStatus(errno, "eventfd");
  }
  std::unique_ptr<LobbyAgent> agent(new LobbyAgent(join, name, std::move(event)));
  DT_RETURN_IF_ERROR(agent->Connect(Deadline::After(join.timeout), cancelled));
  if (agent->term_ == join.memory.term) {
    agent->inbox_.Forget();  // Its coordinator lives, and has given it up.
  }
  DT_ASSIGN_OR_RETURN(const int64_t orders,
                      agent->store_->Add("lobby/orders", 0, Deadline::After(kStoreCallTimeout)));
  agent->is_connected_ = true;
  agent->thread_ = std::thread([raw = agent.get(), orders] { raw->Run(orders + 1); });
  DT_RETURN_IF_ERROR(agent->PostJoin());
  return agent;
}

LobbyAgent::LobbyAgent(const LobbyJoin& join, std::string name, UniqueFd event)
    : join_(join),
      name_(std::move(name)),
      event_(std::move(event)),
      inbox_(name_, join.memory.attempt, join.memory.job_term) {}

LobbyAgent::~LobbyAgent() {
  if (!thread_.joinable()) {
    return;  // It has not joined.
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    store_->Close();
  }
  thread_.join();
}

std::shared_ptr<comm::StoreClient> LobbyAgent::store() const {
  const std::lock_guard lock(mutex_);
  return store_;
}

absl::Status LobbyAgent::Connect(Deadline deadline, const std::function<int()>& cancelled,
                                 absl::Duration try_time) {
  const comm::Hello hello{.epoch = kLobbyEpoch,
                          .role = comm::Hello::Role::kAgent,
                          .id = join_.node.number,
                          .name = name_};
  DT_ASSIGN_OR_RETURN(
      std::shared_ptr<comm::StoreClient> client,
      ConnectToNodeZero(join_.endpoint, join_.key, hello, deadline, cancelled, try_time));
  DT_ASSIGN_OR_RETURN(const std::string text,
                      client->Get(kLobbyTermKey, Deadline::After(kStoreCallTimeout)));
  int64_t term = 0;
  if (!absl::SimpleAtoi(text, &term)) {
    return absl::InvalidArgumentError(absl::StrCat("the coordinator's term is malformed: ", text));
  }
  DT_ASSIGN_OR_RETURN(const std::string version,
                      client->Get(kLobbyVersionKey, Deadline::After(kStoreCallTimeout)));
  DT_RETURN_IF_ERROR(CheckVersion(version));
  const std::lock_guard lock(mutex_);
  if (term < std::max(term_, join_.memory.term)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the coordinator at %s was started before the one that this node has followed (%s by the "
        "clocks of their hosts); end it, set the clock if node 0 is on another host than before, "
        "and start `dtrain launch` of node 0 again",
        join_.endpoint.ToString(),
        absl::FormatDuration(absl::Microseconds(std::max(term_, join_.memory.term) - term))));
  }
  if (stop_) {
    return absl::CancelledError("this node leaves the lobby");
  }
  term_ = term;
  store_ = std::move(client);
  return absl::OkStatus();
}

absl::Status LobbyAgent::PostJoin() {
  LobbyMessage message{.kind = LobbyMessage::Kind::kJoin, .from = name_, .node = join_.node};
  LobbyMemory known = memory();
  message.memory = std::move(known.attempt);
  message.job_term = known.job_term;
  return Send(message);
}

LobbyMemory LobbyAgent::memory() const {
  const std::lock_guard lock(mutex_);
  return {.term = term_, .attempt = inbox_.memory(), .job_term = inbox_.job_term()};
}

absl::Status LobbyAgent::Post(LobbyMessage message) {
  message.from = name_;
  const bool is_report = message.kind == LobbyMessage::Kind::kReport;
  {
    const std::lock_guard lock(mutex_);
    if (is_report) {
      inbox_.NoteReport(message.report);
    }
    if (!is_connected_) {
      return is_report ? absl::OkStatus() : absl::UnavailableError("the coordinator is lost");
    }
  }
  const absl::Status sent = Send(message);
  return is_report && absl::IsUnavailable(sent) ? absl::OkStatus() : sent;
}

absl::Status LobbyAgent::Send(const LobbyMessage& message) {
  return store()
      ->Append(kLobbyInbox, message.Encode(), Deadline::After(kStoreCallTimeout))
      .status();
}

absl::Status LobbyAgent::Tell(const std::string& key, const std::string& value) {
  return AskStore(
      [this, &key, &value](Deadline deadline) { return store()->Set(key, value, deadline); });
}

absl::StatusOr<std::string> LobbyAgent::Ask(const std::string& key, Deadline deadline) {
  return store()->Get(key, deadline);
}

// An agent whose news are lost tells of its next reserve.
void LobbyAgent::TellReserve() {
  store()->Set(kLobbyReserveKey, "1", Deadline::After(kReserveCallTime)).IgnoreError();
}

bool LobbyAgent::MayReserve() {
  const std::vector<std::string> key = {kLobbyReserveKey};
  const auto is_there = store()->Check(key, Deadline::After(kReserveCallTime));
  return is_there.ok() && is_there->front();
}

void LobbyAgent::Run(int64_t next) {
  PrepareThread("dtrain-lobby", /*low_priority=*/false);
  while (!stop_) {
    const auto text = store()->Get(LobbyOrderKey(next), Deadline::After(kBeat));
    if (absl::IsDeadlineExceeded(text.status())) {
      continue;
    }
    if (!text.ok()) {
      DT_LOG(Debug) << "the lobby of the job: " << text.status().message();
      if (const absl::Status followed = FollowSuccessor(); !followed.ok()) {
        Fail(std::string(followed.message()));
        return;
      }
      next = 1;
      continue;
    }
    absl::StatusOr<LobbyOrder> order = LobbyOrder::Parse(*text);
    if (!order.ok()) {
      Fail(std::string(order.status().message()));
      return;
    }
    const std::lock_guard lock(mutex_);
    order->term = term_;
    inbox_.Take(*std::move(order));
    ++next;
    changed_.notify_all();
    (void)eventfd_write(event_.get(), 1);
  }
}

void LobbyAgent::Fail(const std::string& why) {
  const std::lock_guard lock(mutex_);
  health_ = absl::UnavailableError(why);
  changed_.notify_all();
  (void)eventfd_write(event_.get(), 1);
}

// The orders of a successor are read from the first one on: it may have ended the attempt before
// this agent came.
absl::Status LobbyAgent::FollowSuccessor() {
  constexpr char kLost[] = "node 0, which has the job's coordinator, is lost";
  constexpr absl::Duration kTry = absl::Milliseconds(500);
  int64_t term = 0;
  {
    const std::lock_guard lock(mutex_);
    is_connected_ = false;
    term = term_;
    changed_.notify_all();
  }
  const absl::Status connected = Connect(
      Deadline::After(join_.patience), [this] { return stop_ ? SIGTERM : 0; }, kTry);
  if (!connected.ok()) {
    return absl::UnavailableError(absl::IsDeadlineExceeded(connected)
                                      ? absl::StrCat(kLost, " and has not come back within ",
                                                     absl::FormatDuration(join_.patience))
                                      : absl::StrCat(kLost, ": ", connected.message()));
  }
  if (memory().term == term) {
    return absl::UnavailableError("the coordinator has given this node up: its connection broke");
  }
  LobbyMessage message{.kind = LobbyMessage::Kind::kJoin, .from = name_, .node = join_.node};
  {
    const std::lock_guard lock(mutex_);
    message.memory = inbox_.memory();
    message.job_term = inbox_.job_term();
  }
  absl::Status joined = Send(message);
  LobbyMessage late{.kind = LobbyMessage::Kind::kReport, .from = name_};
  bool is_late = false;
  {
    const std::lock_guard lock(mutex_);
    is_connected_ = true;  // From here on the reports are posted at once, behind the join.
    const std::optional<AttemptMemory> known = inbox_.memory();
    is_late = known.has_value() && known->report.has_value() && message.memory.has_value() &&
              !message.memory->report.has_value();
    if (is_late) {
      late.report = *known->report;
    }
  }
  if (joined.ok() && is_late) {
    joined = Send(late);
  }
  return joined.ok() ? joined : absl::UnavailableError(absl::StrCat(kLost, ": ", joined.message()));
}

absl::StatusOr<std::optional<LobbyOrder>> LobbyAgent::Next(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                    [this] { return inbox_.has_next() || !health_.ok() || !is_connected_; });
  if (inbox_.has_next()) {
    return inbox_.Next();
  }
  DT_RETURN_IF_ERROR(health_);
  if (!is_connected_) {
    return absl::UnavailableError("node 0, which has the job's coordinator, is lost");
  }
  return std::optional<LobbyOrder>();
}

std::optional<LobbyOrder> LobbyAgent::TakeStop(int attempt) {
  eventfd_t ignored = 0;
  (void)eventfd_read(event_.get(), &ignored);
  std::lock_guard lock(mutex_);
  return inbox_.TakeStop(attempt);
}

absl::StatusOr<LobbyOrder> LobbyAgent::AwaitAnswer(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                    [this] { return inbox_.has_answer() || !health_.ok(); });
  if (inbox_.has_answer()) {
    return *inbox_.TakeAnswer();
  }
  DT_RETURN_IF_ERROR(health_);
  return absl::DeadlineExceededError("the coordinator does not answer");
}

absl::Status LobbyAgent::AwaitDismissal(const std::string& name, absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  const auto has_left = [&] { return inbox_.HasLeft(name); };
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
