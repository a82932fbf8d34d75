#include "comm/transport/stream_transport.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace dtrain::comm {
namespace {
// How long the reason of a peer that closed its data connection may take to arrive.
constexpr int kVerdictGraceMs = 200;
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
      explain_(std::move(explain)),
      lanes_(peers_.size()),
      verdicts_(peers_.size()),
      control_open_(peers_.size()) {
  for (size_t i = 0; i < peers_.size(); ++i) {
    control_open_[i] = peers_[i].control != nullptr;
    lanes_[i].resize(peers_[i].data.size());
  }
}

absl::Status StreamTransport::ReadVerdict(int peer) {
  const auto i = static_cast<size_t>(peer);
  if (!control_open_[i]) {
    return absl::OkStatus();
  }
  Verdict& verdict = verdicts_[i];
  const auto whole = peers_[i].control->TryReceive(
      absl::MakeSpan(reinterpret_cast<std::byte*>(&verdict), sizeof(verdict)));
  if (!whole.ok()) {
    control_open_[i] = false;  // It ended without a word; the data connection will tell.
    return absl::OkStatus();
  }
  if (!*whole) {
    return absl::OkStatus();
  }
  const absl::string_view text(verdict.text, strnlen(verdict.text, sizeof(verdict.text)));
  return absl::Status(static_cast<absl::StatusCode>(verdict.code),
                      absl::StrCat("reported by ", PeerName(peer), ": ", text));
}

absl::Status StreamTransport::ReadVerdicts() {
  for (int peer = 0; peer < size(); ++peer) {
    DT_RETURN_IF_ERROR(ReadVerdict(peer));
  }
  return absl::OkStatus();
}

absl::Status StreamTransport::AwaitVerdict(int peer) {
  const auto i = static_cast<size_t>(peer);
  DT_RETURN_IF_ERROR(ReadVerdict(peer));
  if (!control_open_[i]) {
    return absl::OkStatus();
  }
  pollfd item{peers_[i].control->fd(), POLLIN, 0};
  poll(&item, 1, kVerdictGraceMs);
  return ReadVerdict(peer);
}

void StreamTransport::AddDescriptors(std::vector<pollfd>& items,
                                     absl::FunctionRef<bool(int peer)> awaited) const {
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (!peers_[i].data.empty() && awaited(static_cast<int>(i))) {
      items.push_back({peers_[i].data[0]->fd(), POLLIN, 0});
    }
    if (control_open_[i]) {
      items.push_back({peers_[i].control->fd(), POLLIN, 0});
    }
  }
}

bool StreamTransport::Ended(int peer) const {
  char byte = 0;
  const int fd = peers_.at(static_cast<size_t>(peer)).data.at(0)->fd();
  const ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

absl::Status StreamTransport::Explain(int peer, const absl::Status& symptom) {
  DT_RETURN_IF_ERROR(AwaitVerdict(peer));
  if (Ended(peer)) {
    return Gone(peer, absl::UnavailableError("it closed the connection"));
  }
  return Annotate(symptom, PeerName(peer));
}

absl::Status StreamTransport::Gone(int peer, const absl::Status& what) {
  if (what.code() != absl::StatusCode::kUnavailable) {
    return Annotate(what, PeerName(peer));  // Altered or mismatched bytes.
  }
  DT_RETURN_IF_ERROR(AwaitVerdict(peer));
  DT_RETURN_IF_ERROR(explain_(peer));
  return absl::UnavailableError(absl::StrCat(PeerName(peer), " is gone: ", what.message()));
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

absl::Status StreamTransport::WaitForAny(const WaitContext& context) {
  polled_.clear();
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (control_open_[i]) {
      polled_.push_back({peers_[i].control->fd(), POLLIN, 0});
    }
  }
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
  const int timeout = Earlier(context.deadline, Deadline::After(kWaitSlice)).PollTimeoutMs();
  poll(polled_.data(), polled_.size(), timeout);
  // A system call for each peer saved, where poll has said that there is nothing.
  if (std::any_of(polled_.begin(), polled_.begin() + static_cast<ptrdiff_t>(controls),
                  [](const pollfd& item) { return item.revents != 0; })) {
    DT_RETURN_IF_ERROR(ReadVerdicts());
  }
  return context.deadline.Expired() ? TimedOut() : absl::OkStatus();
}

absl::Status StreamTransport::TimedOut() const {
  std::string text = "timed out waiting for";
  absl::string_view separator = " ";
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (!std::all_of(lanes_[i].begin(), lanes_[i].end(),
                     [](const Lanes& lanes) { return lanes.done(); })) {
      absl::StrAppend(&text, separator, peers_[i].name);
      separator = "; ";
    }
  }
  return absl::DeadlineExceededError(text);
}

void StreamTransport::Shutdown(const absl::Status& reason) {
  const std::lock_guard lock(shutdown_mutex_);
  if (std::exchange(shut_down_, true)) {
    return;
  }
  Verdict verdict;
  verdict.code = static_cast<int32_t>(reason.code());
  const absl::string_view text = reason.message();
  std::memcpy(verdict.text, text.data(), std::min(text.size(), sizeof(verdict.text) - 1));
  for (const StreamPeer& peer : peers_) {
    if (peer.control != nullptr && !reason.ok()) {
      // It fits into an empty socket buffer, or the peer is gone and needs it no more.
      const auto sent = peer.control->TrySend(
          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&verdict), sizeof(verdict)));
      static_cast<void>(sent);
    }
    for (const auto& channel : peer.data) {
      channel->Shutdown();
    }
  }
}

}  // namespace dtrain::comm
