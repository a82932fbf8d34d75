#include "launcher/jobs/control_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "base/threads/worker.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kDatagramMax = 16 << 10;
constexpr int kSliceMs = 100;
// A client that says nothing, or reads nothing, does not keep the others waiting.
constexpr absl::Duration kRequestTime = absl::Seconds(2);
constexpr timeval kReplyTime = {.tv_sec = 2, .tv_usec = 0};

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("control socket path %s has %d bytes; allowed: below %d (set TMPDIR to a "
                        "shorter folder)",
                        path, path.size(), sizeof(address.sun_path)));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

bool IsSameUser(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// The next datagram; "" at the end of the connection.
absl::StatusOr<std::string> Receive(int fd, Deadline deadline) {
  std::array<char, kDatagramMax> datagram{};
  while (!deadline.Expired()) {
    pollfd entry{fd, POLLIN, 0};
    if (poll(&entry, 1, deadline.PollTimeoutMs()) <= 0) {
      continue;
    }
    const ssize_t n = recv(fd, datagram.data(), datagram.size(), MSG_DONTWAIT);
    if (n >= 0) {
      return std::string(datagram.data(), static_cast<size_t>(n));
    }
    if (errno != EINTR && errno != EAGAIN) {
      return ErrnoStatus(errno, "the agent's control socket");
    }
  }
  return absl::DeadlineExceededError("nothing came on the agent's control socket in time");
}

void SendInPieces(int fd, absl::string_view text) {
  do {
    const absl::string_view piece = text.substr(0, kDatagramMax);
    if (send(fd, piece.data(), piece.size(), MSG_NOSIGNAL) < 0) {
      return;  // It has hung up, or reads nothing.
    }
    text.remove_prefix(piece.size());
  } while (!text.empty());
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(
    const std::string& path, std::function<void(const ControlCall&)> serve) {
  DT_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid() ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), 0600) != 0 || listen(listener.get(), SOMAXCONN) != 0) {
    return ErrnoStatus(errno, absl::StrCat("control socket ", path));
  }
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(listener), std::move(serve)));
}

ControlServer::ControlServer(UniqueFd listener, std::function<void(const ControlCall&)> serve)
    : listener_(std::move(listener)), serve_(std::move(serve)) {
  thread_ = std::thread([this] { Run(); });
}

ControlServer::~ControlServer() {
  stop_ = true;
  thread_.join();
}

void ControlServer::Run() {
  PrepareThread("dtrain-control", /*low_priority=*/true);
  while (!stop_) {
    pollfd entry{listener_.get(), POLLIN, 0};
    if (poll(&entry, 1, kSliceMs) <= 0) {
      continue;
    }
    const UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client.valid() && IsSameUser(client.get())) {
      ServeOne(client.get());
    }
  }
}

void ControlServer::ServeOne(int client) {
  const absl::StatusOr<std::string> request = Receive(client, Deadline::After(kRequestTime));
  if (!request.ok() || request->empty()) {
    return;
  }
  setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &kReplyTime, sizeof(kReplyTime));
  serve_({*request, [client](const std::string& text) { SendInPieces(client, text); },
          [this, client] {
            pollfd entry{client, 0, 0};  // It has hung up, too.
            return stop_.load() || (poll(&entry, 1, 0) > 0 && (entry.revents & POLLHUP) != 0);
          }});
}

absl::StatusOr<ControlClient> ControlClient::Ask(const std::string& path,
                                                 const std::string& request) {
  DT_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid() ||
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) {
    return ErrnoStatus(errno, absl::StrFormat("cannot reach the agent at %s", path));
  }
  return ControlClient(std::move(fd));
}

absl::StatusOr<std::optional<std::string>> ControlClient::Next(Deadline deadline) {
  DT_ASSIGN_OR_RETURN(std::string text, Receive(fd_.get(), deadline));
  return text.empty() ? std::nullopt : std::optional(std::move(text));
}

absl::StatusOr<std::string> ControlClient::Rest(Deadline deadline) {
  std::string all;
  while (true) {
    DT_ASSIGN_OR_RETURN(const std::optional<std::string> text, Next(deadline));
    if (!text.has_value()) {
      return all;
    }
    absl::StrAppend(&all, *text);
  }
}

}  // namespace dtrain::launcher
