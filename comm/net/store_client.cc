#include "comm/net/store_client.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "comm/net/key_values.h"
#include "comm/net/store_errors.h"
#include "comm/net/store_protocol.h"

namespace dtrain::comm {
namespace {

StoreRequest OneKey(StoreOp op, absl::string_view key) {
  StoreRequest request;
  request.op = op;
  request.keys = {std::string(key)};
  return request;
}

StoreRequest ManyKeys(StoreOp op, absl::Span<const std::string> keys) {
  StoreRequest request;
  request.op = op;
  request.keys.assign(keys.begin(), keys.end());
  return request;
}

// Refuses requests for which the server would close the connection as an attack.
absl::Status CheckRequest(const StoreRequest& request) {
  if (request.keys.size() > kStoreKeysMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d store keys in one call; allowed: at most %d", request.keys.size(), kStoreKeysMax));
  }
  for (const std::string& key : request.keys) {
    DT_RETURN_IF_ERROR(CheckStoreKey(key));
  }
  for (const size_t bytes : {request.value.size(), request.expected.value_or("").size()}) {
    DT_RETURN_IF_ERROR(CheckStoreValue(request.keys.empty() ? "" : request.keys.front(), bytes));
  }
  return absl::OkStatus();
}

// A store lives in the first node's agent, or in rank 0 without a launcher.
constexpr char kWhatToDo[] =
    ": see on the first node why `dtrain launch`, or rank 0, ended, or whether a firewall closes "
    "its port; then start the job again";

}  // namespace

absl::StatusOr<std::unique_ptr<StoreClient>> StoreClient::Connect(const Endpoint& server,
                                                                  const JobKey& key,
                                                                  const Hello& hello,
                                                                  Deadline deadline) {
  auto channel = SecureChannel::Connect(server, key, hello, deadline);
  if (!channel.ok()) {
    const absl::Status status =
        Annotate(channel.status(), absl::StrCat("store at ", server.ToString()));
    return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)
               ? absl::Status(status.code(), absl::StrCat(status.message(), kWhatToDo))
               : status;
  }
  return std::unique_ptr<StoreClient>(new StoreClient(*std::move(channel)));
}

StoreClient::StoreClient(std::unique_ptr<SecureChannel> channel) : channel_(std::move(channel)) {}
StoreClient::~StoreClient() = default;

absl::Status StoreClient::Set(absl::string_view key, absl::string_view value, Deadline deadline) {
  StoreRequest request = OneKey(StoreOp::kSet, key);
  request.value = std::string(value);
  return Call(request, deadline).status();
}

absl::StatusOr<std::string> StoreClient::Get(absl::string_view key, Deadline deadline) {
  StoreRequest request = OneKey(StoreOp::kGet, key);
  const WaitTimer timer;
  auto reply = Call(request, deadline);
  if (absl::IsDeadlineExceeded(reply.status())) {
    return MissingKeyError(absl::StrCat("store ", name()), request.keys, timer.Elapsed());
  }
  DT_RETURN_IF_ERROR(reply.status());
  return std::move(reply->value);
}

absl::StatusOr<int64_t> StoreClient::Add(absl::string_view key, int64_t delta, Deadline deadline) {
  StoreRequest request = OneKey(StoreOp::kAdd, key);
  request.delta = delta;
  DT_ASSIGN_OR_RETURN(const StoreReply reply, Call(request, deadline));
  return reply.number;
}

absl::StatusOr<Store::Exchange> StoreClient::CompareExchange(
    absl::string_view key, std::optional<absl::string_view> expected, absl::string_view desired,
    Deadline deadline) {
  StoreRequest request = OneKey(StoreOp::kCompareExchange, key);
  request.value = std::string(desired);
  if (expected.has_value()) {
    request.expected = std::string(*expected);
  }
  DT_ASSIGN_OR_RETURN(StoreReply reply, Call(request, deadline));
  return Exchange{reply.number == 1, std::move(reply.value)};
}

absl::Status StoreClient::Wait(absl::Span<const std::string> keys, Deadline deadline) {
  StoreRequest request = ManyKeys(StoreOp::kWait, keys);
  const WaitTimer timer;
  absl::Status status = Call(request, deadline).status();
  if (!absl::IsDeadlineExceeded(status)) {
    return status;
  }
  const absl::Duration waited = timer.Elapsed();
  const auto exists = Check(keys, Deadline::After(absl::Seconds(2)));
  std::vector<std::string> missing;
  for (size_t i = 0; exists.ok() && i < keys.size(); ++i) {
    if (!(*exists)[i]) {
      missing.push_back(keys[i]);
    }
  }
  return missing.empty() ? status
                         : MissingKeyError(absl::StrCat("store ", name()), missing, waited);
}

absl::StatusOr<std::vector<bool>> StoreClient::Check(absl::Span<const std::string> keys,
                                                     Deadline deadline) {
  StoreRequest request = ManyKeys(StoreOp::kCheck, keys);
  DT_ASSIGN_OR_RETURN(const StoreReply reply, Call(request, deadline));
  if (reply.value.size() != keys.size()) {
    return absl::InternalError(absl::StrFormat("store %s: %d answers to a check of %d keys", name(),
                                               reply.value.size(), keys.size()));
  }
  std::vector<bool> exists;
  for (const char c : reply.value) {
    exists.push_back(c == 1);
  }
  return exists;
}

absl::StatusOr<bool> StoreClient::Delete(absl::string_view key, Deadline deadline) {
  StoreRequest request = OneKey(StoreOp::kDelete, key);
  DT_ASSIGN_OR_RETURN(const StoreReply reply, Call(request, deadline));
  return reply.number == 1;
}

absl::StatusOr<int64_t> StoreClient::Append(absl::string_view list, absl::string_view value,
                                            Deadline deadline) {
  StoreRequest request = OneKey(StoreOp::kAppend, list);
  request.value = std::string(value);
  DT_ASSIGN_OR_RETURN(const StoreReply reply, Call(request, deadline));
  return reply.number;
}

void StoreClient::Close() {
  channel_->Close();
  std::lock_guard lock(mutex_);
  if (broken_.ok()) {
    broken_ = absl::UnavailableError(absl::StrCat("store ", name(), ": this client was closed"));
  }
  changed_.notify_all();
}

Endpoint StoreClient::local_endpoint() const { return LocalEndpoint(channel_->fd()); }

absl::StatusOr<StoreReply> StoreClient::Call(StoreRequest& request, Deadline deadline) {
  DT_RETURN_IF_ERROR(CheckRequest(request));
  {
    std::lock_guard lock(mutex_);
    DT_RETURN_IF_ERROR(broken_);
    request.id = next_id_++;
    replies_.emplace(request.id, std::nullopt);
  }
  const std::string payload = EncodeStoreRequest(request);
  absl::Status sent = absl::OkStatus();
  if (payload.size() > kStoreRequestBytesMax) {
    sent = absl::InvalidArgumentError(absl::StrFormat(
        "a store request of %d bytes; allowed: at most %d", payload.size(), kStoreRequestBytesMax));
  } else {
    sent = channel_->Send(kFrameStoreRequest, payload, deadline);
  }
  if (!sent.ok()) {
    std::lock_guard lock(mutex_);
    replies_.erase(request.id);
    if (absl::IsUnavailable(sent) && broken_.ok()) {
      broken_ = Annotate(sent, "the store is gone");
    }
    return broken_.ok() ? sent : broken_;
  }
  auto reply = Await(request.id, deadline);
  const bool waits = request.op == StoreOp::kGet || request.op == StoreOp::kWait;
  if (waits && absl::IsDeadlineExceeded(reply.status())) {
    StoreRequest cancel;
    cancel.op = StoreOp::kCancel;
    cancel.id = request.id;
    // Best effort: a request that stays costs the server a little memory and its answer is dropped.
    (void)channel_->Send(kFrameStoreRequest, EncodeStoreRequest(cancel),
                         Deadline::After(absl::Seconds(1)));
  }
  DT_RETURN_IF_ERROR(reply.status());
  if (!reply->status.ok()) {
    return Annotate(reply->status, absl::StrCat("store ", name()));
  }
  return reply;
}

absl::StatusOr<StoreReply> StoreClient::Await(uint64_t id, Deadline deadline) {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto entry = replies_.find(id);
    if (entry->second.has_value()) {
      const std::string payload = *std::move(entry->second);
      replies_.erase(entry);
      return ParseStoreReply(payload);
    }
    if (!broken_.ok() || deadline.Expired()) {
      replies_.erase(entry);
      return !broken_.ok() ? broken_
                           : absl::DeadlineExceededError(absl::StrCat(
                                 "store ", name(), " did not answer in time", kWhatToDo));
    }
    if (reading_) {
      changed_.wait_for(lock, std::chrono::milliseconds(deadline.PollTimeoutMs()));
    } else {
      ReadOne(lock, deadline);
    }
  }
}

// Reads one reply and stores it for the thread that waits for it. `lock` is released meanwhile.
void StoreClient::ReadOne(std::unique_lock<std::mutex>& lock, Deadline deadline) {
  reading_ = true;
  lock.unlock();
  auto frame = channel_->Receive(deadline);
  lock.lock();
  reading_ = false;
  if (frame.ok()) {
    const auto id = ParseStoreReplyId(frame->payload);
    const auto entry = replies_.find(id.value_or(0));
    if (entry != replies_.end()) {
      entry->second = std::move(frame->payload);
    }
  } else if (!absl::IsDeadlineExceeded(frame.status()) && broken_.ok()) {
    broken_ = absl::UnavailableError(
        absl::StrCat("the store is gone: ", frame.status().message(), kWhatToDo));
  }
  changed_.notify_all();
}

}  // namespace dtrain::comm
