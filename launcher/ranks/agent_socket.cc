#include "launcher/ranks/agent_socket.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kDatagramMax = 16 << 10;
constexpr size_t kClientsMax = 4096;

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("agent socket path %s has %d bytes; allowed: below %d (set TMPDIR to a "
                        "shorter folder)",
                        path, path.size(), sizeof(address.sun_path)));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

// Nothing when the kernel does not say.
std::optional<ucred> PeerOf(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return std::nullopt;
  }
  return peer;
}

bool SameUser(int fd) {
  const std::optional<ucred> peer = PeerOf(fd);
  return peer.has_value() && peer->uid == geteuid();
}

bool AddToEpoll(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

void AgentSocket::Answer(int asker, const std::string& text) {
  send(asker, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool AgentSocket::SendOrder(int pid, const std::string& text) {
  const auto stayer = stayers_.find(pid);
  return stayer != stayers_.end() && text.size() <= AgentChannel::kOrderMax &&
         send(stayer->second, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
             static_cast<ssize_t>(text.size());
}

void AgentSocket::TellFailure(const std::string& why) const {
  for (const int rank : ranks_) {
    Answer(rank, why.substr(0, AgentChannel::kFailureMax));
  }
}

absl::StatusOr<std::string> AskAgent(const std::string& socket_path, Deadline deadline) {
  DT_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(socket_path));
  const UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() ||
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      send(fd.get(), kQuestion, sizeof(kQuestion) - 1, MSG_NOSIGNAL) < 0) {
    return ErrnoStatus(errno, absl::StrFormat("cannot reach the agent at %s", socket_path));
  }
  constexpr size_t kAnswerMax = 1 << 20;
  std::string answer(kAnswerMax, '\0');
  while (!deadline.Expired()) {
    pollfd entry{fd.get(), POLLIN, 0};
    poll(&entry, 1, deadline.PollTimeoutMs());
    const ssize_t n = recv(fd.get(), answer.data(), answer.size(), 0);
    if (n > 0) {
      answer.resize(static_cast<size_t>(n));
      return answer;
    }
    if (n == 0) {
      break;
    }
  }
  return absl::UnavailableError("the agent does not answer: it waits for other nodes, or ends");
}

absl::StatusOr<AgentSocket> AgentSocket::Listen(const std::string& path) {
  DT_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!listener.valid() || !epoll.valid() ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), 0600) != 0 || listen(listener.get(), SOMAXCONN) != 0 ||
      !AddToEpoll(epoll.get(), listener.get())) {
    return ErrnoStatus(errno, absl::StrFormat("agent socket %s", path));
  }
  return AgentSocket(std::move(listener), std::move(epoll), path);
}

void AgentSocket::Accept(std::vector<AgentMessage>& messages) {
  while (clients_.size() < kClientsMax) {
    UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client.valid()) {
      return;
    }
    if (SameUser(client.get()) && AddToEpoll(epoll_.get(), client.get())) {
      const int fd = client.get();
      clients_.push_back(std::move(client));
      ReceiveFrom(fd, messages);
    }
  }
}

void AgentSocket::ReceiveFrom(int fd, std::vector<AgentMessage>& messages) {
  std::array<char, kDatagramMax> datagram{};
  while (messages.size() < kMessagesMax) {
    const ssize_t n = recv(fd, datagram.data(), datagram.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      return;
    }
    if (n <= 0) {  // Closing takes it out of the epoll set.
      for (auto it = stayers_.begin(); it != stayers_.end();) {
        it = it->second == fd ? stayers_.erase(it) : std::next(it);
      }
      ranks_.erase(fd);
      questions_.erase(std::remove(questions_.begin(), questions_.end(), fd), questions_.end());
      clients_.erase(std::find_if(clients_.begin(), clients_.end(),
                                  [fd](const UniqueFd& client) { return client.get() == fd; }));
      return;
    }
    const absl::string_view text(datagram.data(), static_cast<size_t>(n));
    if (text == kQuestion) {
      questions_.push_back(fd);
      continue;
    }
    absl::StatusOr<AgentMessage> message = AgentMessage::Parse(text);
    if (message.ok()) {
      // A rank in a pid namespace of its own knows another number than this process has for it.
      if (const std::optional<ucred> peer = PeerOf(fd); peer.has_value() && peer->pid > 0) {
        message->pid = peer->pid;
      }
      if (message->kind == AgentMessage::Kind::kCanStay) {
        stayers_[message->pid] = fd;
      } else if (message->kind == AgentMessage::Kind::kHello) {
        ranks_.insert(fd);
      }
      messages.push_back(*std::move(message));
    }
  }
}

std::vector<AgentMessage> AgentSocket::Receive() {
  std::vector<AgentMessage> messages;
  std::array<epoll_event, 64> events{};
  constexpr int kEventsMax = static_cast<int>(events.size());
  int ready = kEventsMax;
  while (ready == kEventsMax && messages.size() < kMessagesMax) {
    ready = epoll_wait(epoll_.get(), events.data(), kEventsMax, 0);
    for (int i = 0; i < ready; ++i) {
      const int fd = events.at(static_cast<size_t>(i)).data.fd;
      if (fd == listener_.get()) {
        Accept(messages);
      } else {
        ReceiveFrom(fd, messages);
      }
    }
  }
  return messages;
}

std::vector<AgentMessage> AgentSocket::ReceiveAll() {
  std::vector<AgentMessage> messages = Receive();
  for (size_t last = messages.size(); last >= kMessagesMax;) {
    std::vector<AgentMessage> more = Receive();
    last = more.size();
    std::move(more.begin(), more.end(), std::back_inserter(messages));
  }
  return messages;
}

}  // namespace dtrain::launcher
