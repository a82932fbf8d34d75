#include "comm/transport/stream_transport.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace dtrain::comm {

StreamTransport::StreamTransport(int rank, std::vector<StreamPeer> peers,
                                 std::function<absl::Status(int peer)> explain)
    : rank_(rank),
      peers_(std::move(peers)),
      explain_(std::move(explain)),
      sends_(peers_.size()),
      receives_(peers_.size()) {}

absl::Status StreamTransport::Gone(int peer, const std::string& what) const {
  if (absl::Status known = explain_(peer); !known.ok()) {
    return known;
  }
  return absl::UnavailableError(absl::StrCat(PeerName(peer), " is gone: ", what));
}

absl::StatusOr<bool> StreamTransport::Progress(int peer, Lane& lane, bool sending) {
  const int fd = peers_[static_cast<size_t>(peer)].fd;
  bool any = false;
  while (!lane.idle()) {
    const Transfer& transfer = *lane.queue[lane.next];
    if (lane.moved == transfer.bytes) {
      ++lane.next;
      lane.moved = 0;
      continue;
    }
    char* const at = static_cast<char*>(transfer.data) + lane.moved;
    const size_t left = transfer.bytes - lane.moved;
    const ssize_t n = sending ? send(fd, at, left, MSG_NOSIGNAL | MSG_DONTWAIT)
                              : recv(fd, at, left, MSG_DONTWAIT);
    if (n > 0) {
      lane.moved += static_cast<size_t>(n);
      any = true;
    } else if (n == 0 && !sending) {
      return Gone(peer, "it closed the connection");
    } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
      return Gone(peer, strerror(errno));
    } else if (n < 0 && errno == EAGAIN) {
      break;
    }
  }
  return any;
}

absl::Status StreamTransport::Move(absl::Span<const Transfer> transfers,
                                   const WaitContext& context) {
  for (size_t i = 0; i < peers_.size(); ++i) {
    sends_[i] = Lane();
    receives_[i] = Lane();
  }
  for (const Transfer& transfer : transfers) {
    DT_CHECK(transfer.peer != rank_);
    auto& lanes = transfer.direction == Transfer::Direction::kSend ? sends_ : receives_;
    lanes.at(static_cast<size_t>(transfer.peer)).queue.push_back(&transfer);
  }
  while (true) {
    bool any = false;
    bool done = true;
    for (int peer = 0; peer < size(); ++peer) {
      const auto i = static_cast<size_t>(peer);
      DT_ASSIGN_OR_RETURN(const bool sent, Progress(peer, sends_[i], true));
      DT_ASSIGN_OR_RETURN(const bool received, Progress(peer, receives_[i], false));
      any = any || sent || received;
      done = done && sends_[i].idle() && receives_[i].idle();
    }
    if (done) {
      return absl::OkStatus();
    }
    DT_RETURN_IF_ERROR(context.interrupted());
    if (!any) {
      DT_RETURN_IF_ERROR(WaitForAny(context));
    }
  }
}

absl::Status StreamTransport::WaitForAny(const WaitContext& context) {
  std::vector<pollfd> items;
  for (size_t i = 0; i < peers_.size(); ++i) {
    const int events = (sends_[i].idle() ? 0 : POLLOUT) | (receives_[i].idle() ? 0 : POLLIN);
    if (events != 0) {
      items.push_back({peers_[i].fd, static_cast<short>(events | POLLRDHUP), 0});
    }
  }
  const int timeout = Earlier(context.deadline, Deadline::After(kWaitSlice)).PollTimeoutMs();
  if (poll(items.data(), items.size(), timeout) > 0) {
    return absl::OkStatus();
  }
  return context.deadline.Expired() ? TimedOut() : absl::OkStatus();
}

absl::Status StreamTransport::TimedOut() const {
  std::string text = "timed out waiting for";
  absl::string_view separator = " ";
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (!sends_[i].idle() || !receives_[i].idle()) {
      absl::StrAppend(&text, separator, peers_[i].name);
      separator = "; ";
    }
  }
  return absl::DeadlineExceededError(text);
}

void StreamTransport::Shutdown(const absl::Status& /*reason*/) {
  for (const StreamPeer& peer : peers_) {
    if (peer.fd >= 0) {
      shutdown(peer.fd, SHUT_RDWR);
    }
  }
}

}  // namespace dtrain::comm
