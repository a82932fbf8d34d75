#include "comm/net/store_server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"
#include "base/threads/worker.h"
#include "comm/net/store_protocol.h"

namespace dtrain::comm {
namespace {

constexpr uint64_t kWakeId = 0;
// Requests of one client that are served before the next client's turn.
constexpr int kRequestsPerTurn = 32;
// Limit on the keys of one client's waiting requests.
constexpr size_t kClientWaitBytesMax = 2 * size_t{kStoreRequestBytesMax};

size_t KeyBytes(const std::vector<std::string>& keys) {
  size_t bytes = 0;
  for (const std::string& key : keys) {
    bytes += key.size() + sizeof(std::string);
  }
  return bytes;
}

std::vector<std::string> MissingIn(const KeyValues& values, const std::vector<std::string>& keys) {
  std::vector<std::string> missing;
  for (const std::string& key : keys) {
    if (!values.Contains(key)) {
      missing.push_back(key);
    }
  }
  return missing;
}

}  // namespace

struct StoreServer::Client {
  uint64_t id = 0;
  std::unique_ptr<SecureStream> stream;
  absl::flat_hash_map<uint64_t, uint64_t> waits;  // Request id to wait id.
  size_t wait_bytes = 0;
  size_t accounted_bytes = 0;
  uint32_t interest = 0;
};

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::Create(
    const std::string& bind_address, int port, const JobKey& key, uint64_t epoch,
    const StoreServerOptions& options) {
  DT_ASSIGN_OR_RETURN(const auto context, TlsContext::Create(TlsRole::kServer, key));
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeId;
  if (!epoll.valid() || !wake.valid() ||
      epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return ErrnoStatus(errno, "epoll");
  }
  std::unique_ptr<StoreServer> server(new StoreServer(options, std::move(epoll), std::move(wake)));
  GateOptions gate = options.gate;
  gate.name = gate.name == GateOptions().name ? "store" : gate.name;
  const Hello self{epoch, Hello::Role::kServer, -1, gate.name};
  DT_ASSIGN_OR_RETURN(
      server->gate_,
      Gate::Create(
          Endpoint{bind_address, port}, options.listen, gate,
          [context, self](UniqueFd fd) -> absl::StatusOr<std::unique_ptr<Handshake>> {
            return SecureStream::Create(std::move(fd), context, self, kStoreRequestBytesMax);
          },
          [raw = server.get()](std::unique_ptr<Handshake> done) {
            std::lock_guard lock(raw->mutex_);
            raw->arrivals_.emplace_back(static_cast<SecureStream*>(done.release()));
            (void)eventfd_write(raw->wake_.get(), 1);
          }));
  server->thread_ = std::thread([raw = server.get()] { raw->Run(); });
  return server;
}

StoreServer::StoreServer(const StoreServerOptions& options, UniqueFd epoll, UniqueFd wake)
    : options_(options),
      epoll_(std::move(epoll)),
      wake_(std::move(wake)),
      values_(options.bytes_max) {}

StoreServer::~StoreServer() {
  gate_.reset();
  stop_ = true;
  (void)eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) {
    thread_.join();
  }
}

void StoreServer::Run() {
  PrepareThread("dtrain-store", /*low_priority=*/false);
  std::array<epoll_event, 256> events{};
  std::vector<uint64_t> turn;
  while (!stop_) {
    const int timeout_ms = again_.empty() ? -1 : 0;
    const int count =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
    if (count < 0 && errno != EINTR) {
      DT_LOG(Error) << "store: epoll_wait: " << std::strerror(errno);
      return;
    }
    turn.assign(again_.begin(), again_.end());
    again_.clear();
    for (int i = 0; i < count; ++i) {
      const uint64_t id = events[static_cast<size_t>(i)].data.u64;
      if (id == kWakeId) {
        TakeNewClients();
      } else {
        turn.push_back(id);
      }
    }
    for (const uint64_t id : turn) {
      Serve(id);
    }
    FlushAnswers();
  }
}

void StoreServer::TakeNewClients() {
  eventfd_t ignored = 0;
  (void)eventfd_read(wake_.get(), &ignored);
  std::vector<std::unique_ptr<SecureStream>> arrivals;
  {
    std::lock_guard lock(mutex_);
    arrivals.swap(arrivals_);
  }
  for (auto& stream : arrivals) {
    auto client = std::make_unique<Client>();
    client->id = next_client_++;
    client->stream = std::move(stream);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = client->id;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, client->stream->fd(), &event) != 0) {
      DT_LOG(Error) << "store: " << client->stream->name()
                    << ": epoll_ctl: " << std::strerror(errno);
      continue;
    }
    client->interest = EPOLLIN;
    again_.insert(client->id);  // The first request may already be inside the TLS session.
    clients_.emplace(client->id, std::move(client));
    client_count_ = static_cast<int>(clients_.size());
  }
}

void StoreServer::Serve(uint64_t id) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return;
  }
  Client& client = *found->second;
  flush_.insert(id);  // The socket may only have become writable, so answers are flushed as well.
  const absl::Status served = ServeRequests(client);
  if (!served.ok()) {
    Drop(id, served);
  }
}

absl::Status StoreServer::ServeRequests(Client& client) {
  for (int i = 0; i < kRequestsPerTurn; ++i) {
    if (client.stream->queued_bytes() > options_.client_output_max) {
      // FlushAnswers lets the client be read again once it has taken its answers.
      return absl::OkStatus();
    }
    DT_ASSIGN_OR_RETURN(const auto frame, client.stream->TryReceive());
    if (!frame.has_value()) {
      return absl::OkStatus();
    }
    if (options_.heard != nullptr) {
      options_.heard(client.stream->peer_hello());
    }
    if (frame->type != kFrameStoreRequest) {
      return absl::InvalidArgumentError(absl::StrFormat("a frame of unknown type %d", frame->type));
    }
    DT_ASSIGN_OR_RETURN(const StoreRequest request, ParseStoreRequest(frame->payload));
    DT_RETURN_IF_ERROR(Answer(client, request));
  }
  again_.insert(client.id);  // TLS may hold more requests, which epoll cannot see.
  return absl::OkStatus();
}

absl::Status StoreServer::Answer(Client& client, const StoreRequest& request) {
  StoreReply reply;
  KeyValues::Value value;
  reply.id = request.id;
  switch (request.op) {
    case StoreOp::kSet:
      reply.status = values_.Set(request.keys[0], request.value);
      break;
    case StoreOp::kGet:
      value = values_.Find(request.keys[0]);
      if (value == nullptr) {
        return Park(client, request, request.keys);
      }
      break;
    case StoreOp::kAdd: {
      const auto sum = values_.Add(request.keys[0], request.delta);
      reply.status = sum.status();
      reply.number = sum.value_or(0);
      break;
    }
    case StoreOp::kCompareExchange: {
      const auto exchange =
          values_.CompareExchange(request.keys[0], request.expected, request.value);
      reply.status = exchange.status();
      if (exchange.ok()) {
        reply.number = exchange->exchanged ? 1 : 0;
        value = std::make_shared<const std::string>(exchange->value);
      }
      break;
    }
    case StoreOp::kWait: {
      if (std::vector<std::string> missing = MissingIn(values_, request.keys); !missing.empty()) {
        return Park(client, request, std::move(missing));
      }
      break;
    }
    case StoreOp::kCheck: {
      std::string exists;
      for (const std::string& key : request.keys) {
        exists += values_.Contains(key) ? '\1' : '\0';
      }
      value = std::make_shared<const std::string>(std::move(exists));
      break;
    }
    case StoreOp::kAppend: {
      const auto number = values_.Append(request.keys[0], request.value);
      reply.status = number.status();
      reply.number = number.value_or(0);
      break;
    }
    case StoreOp::kDelete:
      reply.number = values_.Delete(request.keys[0]) ? 1 : 0;
      break;
    case StoreOp::kCancel:
      if (const auto wait = client.waits.find(request.id); wait != client.waits.end()) {
        ForgetWait(wait->second);
      }
      return absl::OkStatus();
  }
  Reply(client, reply, std::move(value));
  if (request.op == StoreOp::kSet || request.op == StoreOp::kAdd ||
      request.op == StoreOp::kCompareExchange || request.op == StoreOp::kAppend) {
    KeyAppeared(request.keys[0]);
  }
  if (request.op == StoreOp::kAppend) {
    KeyAppeared(ListItemKey(request.keys[0], reply.number));
  }
  return absl::OkStatus();
}

void StoreServer::Reply(Client& client, const StoreReply& reply, KeyValues::Value value) {
  client.stream->Queue(kFrameStoreReply, EncodeStoreReplyHead(reply), std::move(value));
  flush_.insert(client.id);
}

absl::Status StoreServer::Park(Client& client, const StoreRequest& request,
                               std::vector<std::string> missing) {
  const size_t bytes = KeyBytes(missing);
  if (client.waits.contains(request.id)) {
    return absl::InvalidArgumentError("a request id that waits already");
  }
  if (client.waits.size() >= options_.client_waits_max ||
      client.wait_bytes + bytes > kClientWaitBytesMax) {
    StoreReply reply;
    reply.id = request.id;
    reply.status = absl::ResourceExhaustedError(
        absl::StrFormat("%d calls of this client wait already", client.waits.size()));
    Reply(client, reply, nullptr);
    return absl::OkStatus();
  }
  const uint64_t id = next_wait_++;
  for (const std::string& key : missing) {
    waits_of_key_[key].insert(id);
  }
  // A key may be named twice.
  const size_t distinct = absl::flat_hash_set<std::string>(missing.begin(), missing.end()).size();
  Waiting wait{client.id, request.id, request.op == StoreOp::kGet, distinct, std::move(missing)};
  waits_.emplace(id, std::move(wait));
  client.waits.emplace(request.id, id);
  client.wait_bytes += bytes;
  waiting_bytes_ += bytes;
  return absl::OkStatus();
}

void StoreServer::KeyAppeared(const std::string& key) {
  const auto waiting = waits_of_key_.find(key);
  if (waiting == waits_of_key_.end()) {
    return;
  }
  const KeyValues::Value value = values_.Find(key);
  if (value == nullptr) {
    return;  // The change was refused.
  }
  const absl::flat_hash_set<uint64_t> ids = std::move(waiting->second);
  waits_of_key_.erase(waiting);
  for (const uint64_t id : ids) {
    Waiting& wait = waits_.at(id);
    if (--wait.missing > 0) {
      continue;
    }
    StoreReply reply;
    reply.id = wait.request;
    Reply(*clients_.at(wait.client), reply, wait.wants_value ? value : nullptr);
    ForgetWait(id);
  }
}

void StoreServer::ForgetWait(uint64_t id) {
  const auto found = waits_.find(id);
  const Waiting wait = std::move(found->second);
  waits_.erase(found);
  for (const std::string& key : wait.keys) {
    const auto of_key = waits_of_key_.find(key);
    if (of_key != waits_of_key_.end()) {
      of_key->second.erase(id);
      if (of_key->second.empty()) {
        waits_of_key_.erase(of_key);
      }
    }
  }
  const size_t bytes = KeyBytes(wait.keys);
  waiting_bytes_ -= bytes;
  Client& client = *clients_.at(wait.client);
  client.wait_bytes -= bytes;
  client.waits.erase(wait.request);
}

void StoreServer::FlushAnswers() {
  std::vector<uint64_t> ids(flush_.begin(), flush_.end());
  flush_.clear();
  for (const uint64_t id : ids) {
    const auto found = clients_.find(id);
    if (found == clients_.end()) {
      continue;
    }
    Client& client = *found->second;
    const bool was_full = client.stream->queued_bytes() > options_.client_output_max;
    const auto flushed = client.stream->Flush();
    if (!flushed.ok()) {
      Drop(id, flushed.status());
      continue;
    }
    if (was_full && client.stream->queued_bytes() <= options_.client_output_max) {
      again_.insert(id);  // The client was not read while its output was full.
    }
    UpdateInterest(client);
  }
  bytes_in_use_ = values_.bytes() + waiting_bytes_ + client_bytes_;
}

void StoreServer::UpdateInterest(Client& client) {
  const size_t queued = client.stream->queued_bytes();
  const size_t bytes = client.stream->buffered_bytes();
  client_bytes_ = client_bytes_ - client.accounted_bytes + bytes;
  client.accounted_bytes = bytes;
  epoll_event event{};
  event.events =
      (queued <= options_.client_output_max ? EPOLLIN : 0U) | (queued > 0 ? EPOLLOUT : 0U);
  event.data.u64 = client.id;
  if (event.events != client.interest) {
    client.interest = event.events;
    (void)epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, client.stream->fd(), &event);
  }
}

void StoreServer::Drop(uint64_t id, const absl::Status& why) {
  const auto found = clients_.find(id);
  Client& client = *found->second;
  if (!absl::IsUnavailable(why)) {  // Log only errors that are not a plain end of the connection.
    DT_LOG(Warning) << "store: closed the connection " << client.stream->name() << " of "
                    << client.stream->peer_hello().name << ": " << why.message();
  }
  std::vector<uint64_t> waits;
  for (const auto& [request, wait] : client.waits) {
    waits.push_back(wait);
  }
  for (const uint64_t wait : waits) {
    ForgetWait(wait);
  }
  client_bytes_ -= client.accounted_bytes;
  if (options_.gone != nullptr) {
    options_.gone(found->second->stream->peer_hello());
  }
  clients_.erase(found);  // Closing the descriptor takes it out of epoll.
  client_count_ = static_cast<int>(clients_.size());
}

}  // namespace dtrain::comm
