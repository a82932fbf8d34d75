#include "comm/transport/unix_mesh.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "comm/net/job_key.h"
#include "comm/net/socket.h"

namespace dtrain::comm {
namespace {

struct HelloBytes {
  char magic[8] = {'d', 't', 'u', 'n', 'i', 'x', '0', '1'};
  int32_t index = -1;
  char nonce[32] = {};
};

absl::StatusOr<UniqueFd> NewSocket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) {
    return ErrnoStatus(errno, "creating a Unix socket");
  }
  return fd;
}

// Waits for `events` on `fd` in slices, so that aborts are noticed.
absl::Status WaitFor(int fd, short events, const WaitContext& context, absl::string_view what) {
  while (true) {
    pollfd item{fd, events, 0};
    if (poll(&item, 1, Earlier(context.deadline, Deadline::After(kWaitSlice)).PollTimeoutMs()) >
        0) {
      return absl::OkStatus();
    }
    DT_RETURN_IF_ERROR(context.interrupted());
    if (context.deadline.Expired()) {
      return absl::DeadlineExceededError(absl::StrCat("timed out while ", what));
    }
  }
}

absl::StatusOr<ucred> PeerCredentials(int fd) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return ErrnoStatus(errno, "reading the credentials of a peer");
  }
  if (credentials.uid != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrFormat("a process of user %d spoke to this rank's socket; allowed: user %d only",
                        credentials.uid, geteuid()));
  }
  return credentials;
}

}  // namespace

absl::StatusOr<UnixListener> UnixListener::Create() {
  UnixListener listener;
  DT_ASSIGN_OR_RETURN(listener.fd, NewSocket());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // For an address without a path the kernel chooses a free abstract name.
  if (bind(listener.fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)) != 0 ||
      listen(listener.fd.get(), 1024) != 0) {
    return ErrnoStatus(errno, "listening on an abstract Unix socket");
  }
  socklen_t length = sizeof(address);
  if (getsockname(listener.fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return ErrnoStatus(errno, "asking for the name of a Unix socket");
  }
  listener.name = absl::BytesToHexString(
      absl::string_view(address.sun_path, length - offsetof(sockaddr_un, sun_path)));
  uint8_t random[16];
  DT_RETURN_IF_ERROR(RandomBytes(absl::MakeSpan(random)));
  listener.nonce = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(random), sizeof(random)));
  return listener;
}

absl::Status UnixMesh::AddPeer(int index, UniqueFd socket) {
  DT_ASSIGN_OR_RETURN(const ucred credentials, PeerCredentials(socket.get()));
  Peer& peer = peers_.at(static_cast<size_t>(index));
  peer.pid = credentials.pid;
  if (peer.pid > 0 && peer.pid != getpid()) {
    peer.pidfd = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
  }
  peer.socket = std::move(socket);
  return absl::OkStatus();
}

std::string UnixMesh::Unconnected() const {
  std::vector<int> ranks;
  for (size_t i = static_cast<size_t>(self_) + 1; i < peers_.size(); ++i) {
    if (!peers_[i].socket.valid()) {
      ranks.push_back(peers_[i].rank);
    }
  }
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

absl::StatusOr<UnixMesh> UnixMesh::Connect(UnixListener listener, std::vector<Member> members,
                                           int self, Deadline deadline) {
  UnixMesh mesh;
  mesh.self_ = self;
  mesh.peers_.resize(members.size());
  for (size_t i = 0; i < members.size(); ++i) {
    mesh.peers_[i].rank = members[i].rank;
  }
  // Connect to the lower ranks, which are listening because their names are known.
  for (int i = 0; i < self; ++i) {
    const Member& member = members[static_cast<size_t>(i)];
    const std::string name = absl::HexStringToBytes(member.name);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (name.size() > sizeof(address.sun_path) || member.nonce.size() != 32) {
      return absl::InternalError(
          absl::StrFormat("rank %d published a malformed socket name", member.rank));
    }
    std::memcpy(address.sun_path, name.data(), name.size());
    DT_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    while (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
      if (errno == EAGAIN && !deadline.Expired()) {  // The listener's backlog is full.
        Clock::Real().Sleep(absl::Milliseconds(1));
        continue;
      }
      return Annotate(ErrnoStatus(errno, "connecting over a Unix socket"),
                      absl::StrFormat("rank %d of this node (is it in another network namespace? "
                                      "then turn shared memory off)",
                                      member.rank));
    }
    HelloBytes hello;
    hello.index = self;
    std::memcpy(hello.nonce, member.nonce.data(), sizeof(hello.nonce));
    DT_RETURN_IF_ERROR(WriteAll(
        fd.get(), absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&hello), sizeof(hello)),
        deadline));
    DT_RETURN_IF_ERROR(mesh.AddPeer(i, std::move(fd)));
  }
  int missing = static_cast<int>(members.size()) - 1 - self;
  while (missing > 0) {
    DT_RETURN_IF_ERROR(Annotate(WaitReadable(listener.fd.get(), deadline),
                                absl::StrCat(mesh.Unconnected(), " of this node did not connect")));
    UniqueFd fd(accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      continue;
    }
    HelloBytes hello;
    const absl::Status read =
        ReadExactly(fd.get(), absl::MakeSpan(reinterpret_cast<std::byte*>(&hello), sizeof(hello)),
                    Earlier(deadline, Deadline::After(absl::Seconds(10))));
    const bool known = read.ok() && std::memcmp(hello.magic, HelloBytes().magic, 8) == 0 &&
                       hello.index > self && hello.index < static_cast<int>(members.size()) &&
                       std::memcmp(hello.nonce, listener.nonce.data(), 32) == 0 &&
                       mesh.fd(hello.index) < 0;
    if (known && mesh.AddPeer(hello.index, std::move(fd)).ok()) {
      --missing;
    }  // Strangers are dropped.
  }
  return mesh;
}

absl::Status UnixMesh::SendFd(int index, int fd, const WaitContext& context) {
  char byte = 'F';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  while (sendmsg(this->fd(index), &message, MSG_NOSIGNAL) != 1) {
    if (errno != EAGAIN && errno != EINTR) {
      return absl::UnavailableError(
          absl::StrCat("passing memory to ", PeerName(index), ": ", strerror(errno)));
    }
    DT_RETURN_IF_ERROR(WaitFor(this->fd(index), POLLOUT, context,
                               absl::StrCat("passing memory to ", PeerName(index))));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> UnixMesh::ReceiveFd(int index, const WaitContext& context) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  while (true) {
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(fd(index), &message, MSG_CMSG_CLOEXEC);
    if (got == 1) {
      const cmsghdr* const header = CMSG_FIRSTHDR(&message);
      if (byte != 'F' || header == nullptr || header->cmsg_type != SCM_RIGHTS) {
        return absl::FailedPreconditionError(
            absl::StrCat(PeerName(index),
                         " sent a message where this rank registers memory: all ranks must "
                         "make the same calls in the same order"));
      }
      int received = -1;
      std::memcpy(&received, CMSG_DATA(header), sizeof(received));
      return UniqueFd(received);
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      return absl::UnavailableError(
          absl::StrCat(PeerName(index), " ended before it passed its memory"));
    }
    DT_RETURN_IF_ERROR(WaitFor(fd(index), POLLIN, context,
                               absl::StrCat("waiting for the memory of ", PeerName(index))));
  }
}

absl::Status UnixMesh::CheckAlive(int index) const {
  const Peer& peer = peers_.at(static_cast<size_t>(index));
  pollfd items[2] = {{peer.socket.get(), POLLRDHUP, 0}, {peer.pidfd.get(), POLLIN, 0}};
  if (poll(items, 2, 0) <= 0) {
    return absl::OkStatus();
  }
  // A dying process closes its files first: a moment later it is known to be dead, or has left.
  if (items[1].fd >= 0 && poll(&items[1], 1, /*timeout=*/50) > 0) {
    return absl::UnavailableError(absl::StrCat(PeerName(index), " has died"));
  }
  return absl::UnavailableError(absl::StrCat(PeerName(index), " has left the group"));
}

std::string UnixMesh::PeerName(int index) const {
  const Peer& peer = peers_.at(static_cast<size_t>(index));
  utsname host{};
  uname(&host);
  return absl::StrFormat("rank %d (host %s, pid %d)", peer.rank, host.nodename, peer.pid);
}

}  // namespace dtrain::comm
