#include "comm/transport/rdma/fake/fake_queue_pair.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/transport/rdma/gid.h"
#include "comm/transport/rdma/wc_status.h"

namespace dtrain::comm {
namespace {

// How long a cut path tries again before the device gives up.
constexpr int64_t kRetryNanos = 200'000'000;

// The bytes of a fake GID that name its network; the last ones identify the process.
constexpr size_t kNetworkBytes = 13;

bool SameNetwork(const GidBytes& a, const GidBytes& b) {
  return std::equal(a.begin(), a.begin() + kNetworkBytes, b.begin());
}

// The socket address, in the abstract namespace, of a queue pair of any process of this host.
std::pair<sockaddr_un, socklen_t> AddressOf(const GidBytes& gid, uint32_t number) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = absl::StrFormat("dtrain-fake-verbs-%d.%d.%d-%d", gid[kNetworkBytes],
                                           gid[kNetworkBytes + 1], gid[kNetworkBytes + 2], number);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

absl::StatusOr<UniqueFd> Socket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return ErrnoStatus(errno, "socket of a fake queue pair");
  }
  return fd;
}

uint32_t NextNumber() {
  static std::atomic<uint32_t> next{17};
  return next++;
}

}  // namespace

const FakeDeviceState::Region* FakeDeviceState::Find(uint32_t key, uint64_t address,
                                                     size_t bytes) const {
  for (const Region& region : regions) {
    if (region.key == key && region.Holds(address, bytes)) {
      return &region;
    }
  }
  return nullptr;
}

void FakeDeviceState::Complete(const Completion& completion) {
  DT_CHECK_LT(completions.size(), completions_max) << " the completion queue overran";
  completions.push_back(completion);
}

FakeQueuePair::FakeQueuePair(std::shared_ptr<FakeDeviceState> device, int sends_max,
                             int receives_max)
    : device_(std::move(device)),
      number_(NextNumber()),
      sends_max_(static_cast<size_t>(sends_max)),
      receives_max_(static_cast<size_t>(receives_max)) {}

absl::StatusOr<std::unique_ptr<FakeQueuePair>> FakeQueuePair::Create(
    std::shared_ptr<FakeDeviceState> device, int sends_max, int receives_max) {
  std::unique_ptr<FakeQueuePair> pair(
      new FakeQueuePair(std::move(device), sends_max, receives_max));
  DT_ASSIGN_OR_RETURN(pair->listener_, Socket());
  const auto [address, length] = AddressOf(pair->device_->gid, pair->number_);
  if (bind(pair->listener_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(pair->listener_.get(), 1) != 0) {
    return ErrnoStatus(errno, "listening as a fake queue pair");
  }
  return pair;
}

FakeQueuePair::~FakeQueuePair() = default;

// Answers as a device does: it ignores another vendor's options, and none can be chosen after it
// has connected.
absl::StatusOr<Ece> FakeQueuePair::Answer(const QueuePairSettings& /*settings*/, const Ece& offer) {
  const Ece own = device_->faults.extensions;
  if (own.vendor == 0 || offer.vendor == 0) {
    return Ece{};
  }
  DT_RETURN_IF_ERROR(Take(offer));
  return Ece{own.vendor, agreed_.options};
}

absl::Status FakeQueuePair::Take(const Ece& answer) {
  if (connected_) {
    return ErrnoStatus(EINVAL, "ibv_set_ece");
  }
  const Ece own = device_->faults.extensions;
  if (own.vendor != 0 && answer.vendor != 0) {
    agreed_ = {own.vendor, answer.vendor == own.vendor ? own.options & answer.options : 0};
  }
  return absl::OkStatus();
}

absl::Status FakeQueuePair::Connect(const QueuePairSettings& settings, const QueuePairEnd& self,
                                    const QueuePairEnd& peer) {
  if (device_->faults.connected != nullptr) {
    device_->faults.connected->push_back(settings);
  }
  if (device_->faults.cannot_connect) {
    return absl::InvalidArgumentError("ibv_modify_qp to RTR: Invalid argument");
  }
  connected_ = true;
  if (device_->faults.agreed_extensions != nullptr) {
    device_->faults.agreed_extensions->push_back(agreed_);
  }
  DT_CHECK_EQ(self.number, number_);
  unreachable_ = device_->faults.rails && !SameNetwork(self.gid, peer.gid);
  if (unreachable_) {
    return absl::OkStatus();
  }
  if (std::pair(self.gid, self.number) < std::pair(peer.gid, peer.number)) {
    DT_ASSIGN_OR_RETURN(socket_, Socket());
    const auto [address, length] = AddressOf(peer.gid, peer.number);
    if (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
      return ErrnoStatus(errno, "connecting fake queue pairs");
    }
  }
  Watch();
  return absl::OkStatus();
}

void FakeQueuePair::Watch() {
  const int fd = socket_.valid() ? socket_.get() : listener_.get();
  watched_writable_ = !outgoing_.empty() && socket_.valid();
  epoll_event event{};
  event.events = EPOLLIN | (watched_writable_ ? EPOLLOUT : 0U);
  if (epoll_ctl(device_->epoll.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    DT_CHECK_EQ(epoll_ctl(device_->epoll.get(), EPOLL_CTL_ADD, fd, &event), 0);
  }
}

absl::Status FakeQueuePair::Post(const RdmaWrite& write) {
  if (unacknowledged_.size() >= sends_max_) {
    return ErrnoStatus(ENOMEM, "ibv_post_send");
  }
  unacknowledged_.push_back(write.id);
  if (broken_) {
    CompleteOldest(unacknowledged_, {.status = kWcFlushed});
    return absl::OkStatus();
  }
  if (unreachable_) {
    lost_since_nanos_ = lost_since_nanos_ == 0 ? Clock::Real().MonotonicNanos() : lost_since_nanos_;
    return absl::OkStatus();
  }
  const int index = device_->writes++;
  if (auto& largest = device_->faults.largest_write; largest != nullptr) {
    largest->store(std::max(largest->load(), write.bytes));
  }
  if (index == device_->faults.fail_write) {
    BreakWith(device_->faults.fail_status, /*tell=*/false);
    return absl::OkStatus();
  }
  const FakeVerbsFaults& faults = device_->faults;
  const bool cut = (faults.cut_at_write >= 0 && index >= faults.cut_at_write) ||
                   (faults.cut_now != nullptr && faults.cut_now->load());
  if (cut && !std::exchange(device_->cut, true)) {
    device_->cut_nanos = Clock::Real().MonotonicNanos();
  }
  if (write.bytes != 0 && device_->Find(write.local_key, reinterpret_cast<uint64_t>(write.from),
                                        write.bytes) == nullptr) {
    BreakWith(kWcLocalProtection);
    return absl::OkStatus();
  }
  Header header;
  header.has_immediate = write.immediate.has_value() ? 1 : 0;
  header.immediate = write.immediate.value_or(0);
  header.key = write.remote_key;
  header.to = write.to;
  header.bytes = write.bytes;
  outgoing_.push_back({header, static_cast<const std::byte*>(write.from)});
  PumpOut();
  return absl::OkStatus();
}

absl::Status FakeQueuePair::PostReceive(uint64_t id) {
  if (receives_.size() >= receives_max_) {
    return ErrnoStatus(ENOMEM, "ibv_post_recv");
  }
  receives_.push_back(id);
  return absl::OkStatus();
}

void FakeQueuePair::Disconnect() { BreakWith(kWcFlushed); }

void FakeQueuePair::AcceptIfCalled() {
  if (socket_.valid() || broken_) {
    return;
  }
  UniqueFd accepted(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (accepted.valid()) {
    epoll_ctl(device_->epoll.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
    socket_ = std::move(accepted);
    Watch();
  }
}

void FakeQueuePair::Pump() {
  if (unreachable_) {
    if (!unacknowledged_.empty() &&
        Clock::Real().MonotonicNanos() - lost_since_nanos_ > kRetryNanos) {
      BreakWith(kWcRetriesExceeded);
    }
    return;
  }
  AcceptIfCalled();
  if (device_->cut) {
    if (!unacknowledged_.empty() &&
        Clock::Real().MonotonicNanos() - device_->cut_nanos > kRetryNanos) {
      BreakWith(kWcRetriesExceeded);
    }
    return;
  }
  PumpIn();
  PumpOut();
  if (!broken_ && socket_.valid() && watched_writable_ == outgoing_.empty()) {
    Watch();
  }
}

void FakeQueuePair::PumpOut() {
  while (!outgoing_.empty() && socket_.valid() && !device_->cut && !device_->LinkIsDown() &&
         !broken_) {
    Outgoing& message = outgoing_.front();
    const size_t of_header = std::min(out_done_, sizeof(Header));
    const size_t of_bytes = out_done_ - of_header;
    std::array<iovec, 2> pieces = {
        iovec{reinterpret_cast<char*>(&message.header) + of_header, sizeof(Header) - of_header},
        iovec{const_cast<std::byte*>(message.from) + of_bytes, message.header.bytes - of_bytes}};
    msghdr request{};
    request.msg_iov = pieces.data();
    request.msg_iovlen = message.header.bytes == 0 ? 1 : 2;
    const ssize_t n = sendmsg(socket_.get(), &request, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EAGAIN || errno == EINTR) {
        return;
      }
      // The peer is gone. Its earlier acknowledgements are still to be read; then Read breaks the
      // pair.
      outgoing_.clear();
      out_done_ = 0;
      return;
    }
    out_done_ += static_cast<size_t>(n);
    if (out_done_ == sizeof(Header) + message.header.bytes) {
      outgoing_.pop_front();
      out_done_ = 0;
    }
  }
}

size_t FakeQueuePair::Read(void* data, size_t bytes) {
  const ssize_t n = recv(socket_.get(), data, bytes, MSG_DONTWAIT);
  if (n > 0) {
    return static_cast<size_t>(n);
  }
  if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
    BreakWith(kWcRetriesExceeded);
  }
  return 0;
}

void FakeQueuePair::PumpIn() {
  while (socket_.valid() && !broken_) {
    const bool in_header = in_done_ < sizeof(Header);
    const size_t wanted =
        in_header ? sizeof(Header) - in_done_ : sizeof(Header) + incoming_.bytes - in_done_;
    void* const place = in_header
                            ? reinterpret_cast<char*>(&incoming_) + in_done_
                            : reinterpret_cast<char*>(incoming_.to) + in_done_ - sizeof(Header);
    const size_t got = Read(place, wanted);
    if (got == 0) {
      return;
    }
    in_done_ += got;
    if (in_header && in_done_ == sizeof(Header)) {
      TakeHeader();
    }
    if (in_done_ == sizeof(Header) + incoming_.bytes) {
      in_done_ = 0;
      if (incoming_.kind == Kind::kWrite && !broken_) {
        TakeWrite();
      }
    }
  }
}

void FakeQueuePair::TakeHeader() {
  if (incoming_.kind == Kind::kWrite) {
    const bool allowed = incoming_.bytes == 0 ||
                         device_->Find(incoming_.key, incoming_.to, incoming_.bytes) != nullptr;
    if (!allowed) {
      Answer(kWcRemoteAccess);
      BreakWith(kWcFlushed);
    }
  } else if (incoming_.kind == Kind::kAcknowledge) {
    CompleteOldest(unacknowledged_, {.status = kWcSuccess});
  } else {
    BreakWith(incoming_.status);
  }
}

void FakeQueuePair::TakeWrite() {
  if (incoming_.has_immediate != 0) {
    if (receives_.empty()) {
      Answer(kWcNotReadyRetriesExceeded);
      BreakWith(kWcFlushed);
      return;
    }
    Completion completion;
    completion.receive = true;
    completion.bytes = incoming_.bytes;
    completion.immediate = incoming_.immediate;
    CompleteOldest(receives_, completion);
  }
  Answer(kWcSuccess);
}

void FakeQueuePair::Answer(int status) {
  Header header;
  header.kind = status == kWcSuccess ? Kind::kAcknowledge : Kind::kRefuse;
  header.status = status;
  outgoing_.push_back({header, nullptr});
  PumpOut();
}

void FakeQueuePair::CompleteOldest(std::deque<uint64_t>& requests, Completion completion) {
  DT_CHECK(!requests.empty());
  completion.id = requests.front();
  requests.pop_front();
  device_->Complete(completion);
}

void FakeQueuePair::BreakWith(int status, bool tell) {
  if (std::exchange(broken_, true)) {
    return;
  }
  if (socket_.valid()) {
    epoll_ctl(device_->epoll.get(), EPOLL_CTL_DEL, socket_.get(), nullptr);
    if (tell) {
      shutdown(socket_.get(), SHUT_WR);
    }
  }
  outgoing_.clear();
  for (int each = status; !unacknowledged_.empty(); each = kWcFlushed) {
    CompleteOldest(unacknowledged_, {.status = each});
  }
  while (!receives_.empty()) {
    CompleteOldest(receives_, {.status = kWcFlushed});
  }
}

}  // namespace dtrain::comm
