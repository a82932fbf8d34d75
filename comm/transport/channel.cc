#include "comm/transport/channel.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace dtrain::comm {

absl::StatusOr<bool> PlainChannel::TrySend(absl::Span<const std::byte> message) {
  while (sent_ < message.size()) {
    const ssize_t n =
        send(fd_, message.data() + sent_, message.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      sent_ += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      return false;
    } else if (errno != EINTR) {
      return absl::UnavailableError(strerror(errno));
    }
  }
  sent_ = 0;
  return true;
}

absl::StatusOr<bool> PlainChannel::TryReceive(absl::Span<std::byte> message) {
  while (received_ < message.size()) {
    const ssize_t n =
        recv(fd_, message.data() + received_, message.size() - received_, MSG_DONTWAIT);
    if (n > 0) {
      received_ += static_cast<size_t>(n);
    } else if (n == 0) {
      return absl::UnavailableError("it closed the connection");
    } else if (errno == EAGAIN) {
      return false;
    } else if (errno != EINTR) {
      return absl::UnavailableError(strerror(errno));
    }
  }
  received_ = 0;
  return true;
}

void PlainChannel::Shutdown() { shutdown(fd_, SHUT_RDWR); }

}  // namespace dtrain::comm
