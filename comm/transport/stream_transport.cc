#include "comm/transport/stream_transport.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/net/socket.h"

namespace dtrain::comm {
namespace {

std::vector<ControlLine> LinesOf(const std::vector<StreamPeer>& peers) {
  std::vector<ControlLine> lines;
  lines.reserve(peers.size());
  for (const StreamPeer& peer : peers) {
    lines.push_back({peer.control.get(), peer.name});
  }
  return lines;
}

}  // namespace

Slice StripeOf(size_t bytes, size_t connections, size_t index) {
  if (bytes < kStripeBytesMin) {
    return index == 0 ? Slice{0, bytes} : Slice{};
  }
  return SliceOf(bytes, static_cast<int>(connections), static_cast<int>(index));
}

StreamTransport::StreamTransport(int rank, std::vector<StreamPeer> peers,
                                 std::function<absl::Status(int peer)> explain)
    : rank_(rank),
      peers_(std::move(peers)),
      control_(rank, LinesOf(peers_)),
      explain_(std::move(explain)),
      lanes_(peers_.size()) {
  for (size_t i = 0; i < peers_.size(); ++i) {
    lanes_[i].resize(peers_[i].data.size());
  }
}

void StreamTransport::AddDescriptors(std::vector<pollfd>& items,
                                     absl::FunctionRef<bool(int peer)> awaited) const {
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (!peers_[i].data.empty() && awaited(static_cast<int>(i))) {
      items.push_back({peers_[i].data[0]->fd(), POLLIN, 0});
    }
  }
  control_.AddDescriptors(items);
}

bool StreamTransport::Ended(int peer) const {
  if (!control_.silence_of(peer).ok()) {
    return true;
  }
  char byte = 0;
  const int fd = peers_.at(static_cast<size_t>(peer)).data.at(0)->fd();
  const ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

absl::Status StreamTransport::Explain(int peer, const absl::Status& symptom,
                                      ControlLines::AwaitedOf awaited) {
  DT_RETURN_IF_ERROR(control_.ReadFrom(peer, awaited));
  if (!control_.silence_of(peer).ok()) {
    return Gone(peer, control_.silence_of(peer), awaited);
  }
  if (Ended(peer)) {
    return Gone(peer, absl::UnavailableError("it closed the connection"), awaited);
  }
  return Annotate(symptom, PeerName(peer));
}

absl::Status StreamTransport::Gone(int peer, const absl::Status& what,
                                   ControlLines::AwaitedOf awaited) {
  if (what.code() != absl::StatusCode::kUnavailable) {
    return Annotate(what, PeerName(peer));  // Altered or mismatched bytes.
  }
  DT_RETURN_IF_ERROR(control_.ReadFrom(peer, awaited));
  DT_RETURN_IF_ERROR(explain_(peer));
  if (HostFellSilent(what)) {
    return absl::UnavailableError(absl::StrCat(
        PeerName(peer), " is gone: its host answers nothing any more (", what.message(),
        "); check that the host runs and that the network between the two is up"));
  }
  return absl::UnavailableError(absl::StrCat(PeerName(peer), " is gone: ", what.message()));
}

absl::Status StreamTransport::FindSilentHost() {
  if (!control_.any_silent()) {
    return absl::OkStatus();
  }
  for (const int peer : Awaited()) {
    if (const absl::Status& silence = control_.silence_of(peer); !silence.ok()) {
      return Gone(peer, silence);
    }
  }
  return absl::OkStatus();
}

absl::Status StreamTransport::Progress(int peer, Channel& channel, Lane& lane, bool sending) {
  while (!lane.idle()) {
    if (!lane.failure.ok()) {
      return Gone(peer, lane.failure);
    }
    const absl::Span<std::byte> message = lane.queue[lane.next];
    const absl::StatusOr<bool> whole =
        sending ? channel.TrySend(message) : channel.TryReceive(message);
    if (!whole.ok() && lane.done()) {
      lane.failure = whole.status();
      break;
    }
    if (!whole.ok()) {
      return Gone(peer, whole.status());
    }
    if (!*whole) {
      break;
    }
    ++lane.next;
  }
  return absl::OkStatus();
}

void StreamTransport::Append(absl::Span<const Transfer> transfers) {
  for (const Transfer& transfer : transfers) {
    DT_CHECK(transfer.peer != rank_);
    std::vector<Lanes>& lanes = lanes_.at(static_cast<size_t>(transfer.peer));
    for (size_t i = 0; i < lanes.size(); ++i) {
      const Slice part = StripeOf(transfer.bytes, lanes.size(), i);
      if (part.count != 0) {
        const bool sending = transfer.direction == Transfer::Direction::kSend;
        (sending ? lanes[i].send : lanes[i].receive)
            .queue.emplace_back(static_cast<std::byte*>(transfer.data) + part.start, part.count);
      }
    }
  }
}

absl::Status StreamTransport::Move(absl::Span<const Transfer> transfers, const WaitContext& context,
                                   absl::FunctionRef<void()> meanwhile,
                                   absl::Span<const Transfer> ahead) {
  if (!std::exchange(ahead_, false)) {
    Append(transfers);
  }
  for (std::vector<Lanes>& of_peer : lanes_) {
    for (Lanes& lanes : of_peer) {
      lanes.send.Begin();
      lanes.receive.Begin();
    }
  }
  for (bool first = true;; first = false) {
    bool done = true;
    for (int peer = 0; peer < size(); ++peer) {
      const auto i = static_cast<size_t>(peer);
      for (size_t c = 0; c < lanes_[i].size(); ++c) {
        Channel& channel = *peers_[i].data[c];
        DT_RETURN_IF_ERROR(Progress(peer, channel, lanes_[i][c].send, true));
        DT_RETURN_IF_ERROR(Progress(peer, channel, lanes_[i][c].receive, false));
        done = done && lanes_[i][c].done();
      }
    }
    if (first) {
      meanwhile();
      Append(ahead);
      ahead_ = !ahead.empty();
    }
    if (done) {
      return absl::OkStatus();
    }
    DT_RETURN_IF_ERROR(context.interrupted());
    DT_RETURN_IF_ERROR(WaitForAny(context));
  }
}

bool StreamTransport::Spin(const WaitContext& context) {
  if (!context.may_spin() || !spins_.Due()) {
    return false;
  }
  const int64_t end = Clock::Real().MonotonicNanos() + absl::ToInt64Nanoseconds(context.spin);
  bool ready = false;
  do {
    ready = poll(polled_.data(), polled_.size(), 0) > 0;
  } while (!ready && context.may_spin() && Clock::Real().MonotonicNanos() < end);
  spins_.Note(ready);
  return ready;
}

absl::Status StreamTransport::WaitForAny(const WaitContext& context) {
  polled_.clear();
  control_.AddDescriptors(polled_);
  const size_t controls = polled_.size();
  for (size_t i = 0; i < peers_.size(); ++i) {
    for (size_t c = 0; c < lanes_[i].size(); ++c) {
      const Lanes& lanes = lanes_[i][c];
      const int events = (lanes.send.idle() ? 0 : POLLOUT) | (lanes.receive.idle() ? 0 : POLLIN);
      if (events != 0) {
        polled_.push_back({peers_[i].data[c]->fd(), static_cast<short>(events), 0});
      }
    }
  }
  if (!Spin(context)) {
    const int timeout = Earlier(context.deadline, Deadline::After(kWaitSlice)).PollTimeoutMs();
    poll(polled_.data(), polled_.size(), timeout);
  }
  // Poll has already told whether the control connections have bytes.
  if (std::any_of(polled_.begin(), polled_.begin() + static_cast<ptrdiff_t>(controls),
                  [](const pollfd& item) { return item.revents != 0; })) {
    DT_RETURN_IF_ERROR(control_.Read([this] { return Awaited(); }));
  }
  DT_RETURN_IF_ERROR(FindSilentHost());
  return context.deadline.Expired() ? TimedOut(*this) : absl::OkStatus();
}

std::vector<int> StreamTransport::Awaited() const {
  std::vector<int> awaited;
  for (int peer = 0; peer < size(); ++peer) {
    const std::vector<Lanes>& of_peer = lanes_[static_cast<size_t>(peer)];
    if (!std::all_of(of_peer.begin(), of_peer.end(),
                     [](const Lanes& lanes) { return lanes.done(); })) {
      awaited.push_back(peer);
    }
  }
  return awaited;
}

void StreamTransport::Shutdown(const absl::Status& reason) {
  const std::lock_guard lock(shutdown_mutex_);
  if (std::exchange(shut_down_, true)) {
    return;
  }
  if (!reason.ok()) {
    control_.Tell(reason);
  }
  for (const StreamPeer& peer : peers_) {
    for (const auto& channel : peer.data) {
      channel->Shutdown();
    }
  }
}

}  // namespace dtrain::comm
