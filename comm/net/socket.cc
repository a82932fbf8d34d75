#include "comm/net/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/numeric/prng.h"
#include "base/status.h"

namespace dtrain::comm {
namespace {

// Marks a status for HostFellSilent.
constexpr absl::string_view kSilentHost = "dtrain/silent-host";
// The same for NameServiceFailed.
constexpr absl::string_view kNameService = "dtrain/name-service";

// One resolved address.
struct Address {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

Endpoint EndpointOf(const sockaddr_storage& storage) {
  char text[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &storage, sizeof(v4));
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return {text, ntohs(v4.sin_port)};
  }
  if (storage.ss_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, &storage, sizeof(v6));
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
    return {text, ntohs(v6.sin6_port)};
  }
  return {};
}

absl::StatusOr<std::vector<Address>> Lookup(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) {
    absl::Status unknown = absl::UnavailableError(
        absl::StrFormat("cannot resolve host \"%s\": %s; check its spelling and this host's "
                        "name service (getent hosts %s)",
                        host, gai_strerror(error), host));
    if (error == EAI_AGAIN) {
      unknown.SetPayload(kNameService, absl::Cord());
    }
    return unknown;
  }
  std::vector<Address> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    Address address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.bytes = entry->ai_addrlen;
    addresses.push_back(address);
  }
  freeaddrinfo(found);
  return addresses;
}

// The addresses of `host`. Literals are read at once; names are asked for in a thread of their own,
// because getaddrinfo has no time limit: past the deadline the thread is left to end by itself.
absl::StatusOr<std::vector<Address>> Resolve(const std::string& host, int port, Deadline deadline) {
  if (port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrFormat("port %d of host %s; allowed: [0, 65535]", port, host));
  }
  auto literal = Lookup(host, port, AI_NUMERICHOST);
  if (literal.ok()) {
    return literal;
  }
  struct Query {
    std::mutex mutex;
    std::condition_variable done;
    bool answered = false;
    absl::StatusOr<std::vector<Address>> answer;
  };
  const auto query = std::make_shared<Query>();
  std::thread([query, host, port] {
    auto answer = Lookup(host, port, 0);
    std::lock_guard lock(query->mutex);
    query->answer = std::move(answer);
    query->answered = true;
    query->done.notify_one();
  }).detach();
  std::unique_lock lock(query->mutex);
  while (!query->answered) {
    if (deadline.Expired()) {
      return absl::DeadlineExceededError(absl::StrFormat(
          "host \"%s\" was not resolved in time; check its spelling and this host's "
          "name service (getent hosts %s)",
          host, host));
    }
    query->done.wait_for(lock, std::chrono::milliseconds(deadline.PollTimeoutMs()));
  }
  return query->answer;
}

absl::StatusOr<bool> PollOnce(int fd, int16_t events, Deadline deadline) {
  pollfd entry{fd, events, 0};
  const int count = ::poll(&entry, 1, deadline.PollTimeoutMs());
  if (count < 0 && errno != EINTR) {
    return ErrnoStatus(errno, "poll");
  }
  return count > 0;
}

absl::Status WaitFor(int fd, int16_t events, Deadline deadline) {
  while (true) {
    DT_ASSIGN_OR_RETURN(const bool ready, PollOnce(fd, events, deadline));
    if (ready) {
      return absl::OkStatus();
    }
    if (deadline.Expired()) {
      return absl::DeadlineExceededError(
          absl::StrFormat("waited too long to %s %s", events == POLLIN ? "read from" : "write to",
                          ConnectionName(fd)));
    }
  }
}

absl::Status SetOption(int fd, int level, int name, int value, const char* what) {
  if (setsockopt(fd, level, name, &value, sizeof(value)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("setsockopt ", what));
  }
  return absl::OkStatus();
}

// One attempt at one address.
absl::StatusOr<UniqueFd> ConnectTo(const Address& address, Deadline deadline,
                                   const ConnectOptions& options) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) {
    return ErrnoStatus(errno, "socket");
  }
  DT_RETURN_IF_ERROR(PrepareSocket(fd.get(), options.user_timeout));
  if (::connect(fd.get(), address.get(), address.bytes) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) {
      return ErrnoStatus(errno, "connect");
    }
    DT_RETURN_IF_ERROR(WaitFor(fd.get(), POLLOUT, deadline));
    int error = 0;
    socklen_t bytes = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) {
      return ErrnoStatus(error, "connect");
    }
  }
  // Linux may connect a socket to itself while nothing listens on an ephemeral port.
  if (LocalEndpoint(fd.get()).ToString() == PeerEndpoint(fd.get()).ToString()) {
    return absl::UnavailableError("connect: connected to itself");
  }
  return fd;
}

std::string Names(const std::vector<LocalAddress>& addresses) {
  std::vector<std::string> names;
  for (const LocalAddress& address : addresses) {
    if (std::find(names.begin(), names.end(), address.interface) == names.end()) {
      names.push_back(address.interface);
    }
  }
  return absl::StrJoin(names, ", ");
}

}  // namespace

std::string Endpoint::ToString() const {
  return absl::StrContains(host, ':') ? absl::StrFormat("[%s]:%d", host, port)
                                      : absl::StrFormat("%s:%d", host, port);
}

absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text) {
  const size_t colon = text.rfind(':');
  Endpoint endpoint;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(text.substr(colon + 1), &endpoint.port) || endpoint.port < 0 ||
      endpoint.port > 65535) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "\"%s\" is no address; allowed: host:port or [v6]:port, with a port up to 65535", text));
  }
  absl::string_view host = text.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (absl::StrContains(host, ':')) {
    return absl::InvalidArgumentError(
        absl::StrFormat("\"%s\" is no address: write an IPv6 address as [%s]:port", text, host));
  }
  endpoint.host = std::string(host);
  return endpoint;
}

bool IsLoopback(absl::string_view host) {
  const std::string text(host);
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) {
    return (ntohl(v4.s_addr) >> 24) == 127;
  }
  in6_addr v6{};
  if (inet_pton(AF_INET6, text.c_str(), &v6) == 1) {
    return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
  }
  return text == "localhost";
}

bool IsWildcard(absl::string_view host) {
  // getaddrinfo takes 0, 0x0 and ::%1 as such addresses too.
  const std::string text(host.substr(0, host.find('%')));
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET6, text.c_str(), &v6) == 1) {
    const bool is_mapped_zero =
        IN6_IS_ADDR_V4MAPPED(&v6) && std::count(v6.s6_addr + 12, v6.s6_addr + 16, 0) == 4;
    return IN6_IS_ADDR_UNSPECIFIED(&v6) || is_mapped_zero;
  }
  return text.empty() || text == "*" || (inet_aton(text.c_str(), &v4) != 0 && v4.s_addr == 0);
}

absl::Status PrepareSocket(int fd, absl::Duration user_timeout) {
  // A third of the timeout passes idle, and four probes share the rest: 30 s are 10 s and 4 x 5 s.
  const int timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(user_timeout));
  const int idle_s = std::max(1, timeout_ms / 3000);
  const int interval_s = std::max(1, timeout_ms / 6000);
  DT_RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"));
  DT_RETURN_IF_ERROR(SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"));
  DT_RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle_s, "TCP_KEEPIDLE"));
  DT_RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval_s, "TCP_KEEPINTVL"));
  DT_RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 4, "TCP_KEEPCNT"));
  return SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, timeout_ms, "TCP_USER_TIMEOUT");
}

absl::Status WaitForLateReader(int fd) {
  return SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 0, "TCP_USER_TIMEOUT");
}

absl::Status BrokenConnection(int error_number) {
  absl::Status broken = absl::UnavailableError(std::strerror(error_number));
  // If the path sent an ICMP error, the kernel gives that error in place of ETIMEDOUT.
  if (error_number == ETIMEDOUT || error_number == EHOSTUNREACH || error_number == ENETUNREACH ||
      error_number == EHOSTDOWN || error_number == ENETDOWN) {
    broken.SetPayload(kSilentHost, absl::Cord());
  }
  return broken;
}

bool HostFellSilent(const absl::Status& status) {
  return status.GetPayload(kSilentHost).has_value();
}

bool NameServiceFailed(const absl::Status& status) {
  return status.GetPayload(kNameService).has_value();
}

absl::StatusOr<UniqueFd> Listen(const Endpoint& where, const ListenOptions& options) {
  if (IsWildcard(where.host) && !options.any_address) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "refused to listen on every interface (\"%s\"): give the address of the trusted network, "
        "as --rdzv-endpoint ADDRESS:PORT, --local-addr or MASTER_ADDR",
        where.host));
  }
  const std::string host = where.host.empty() || where.host == "*" ? "0.0.0.0" : where.host;
  DT_ASSIGN_OR_RETURN(const auto addresses,
                      Resolve(host, where.port, Deadline::After(absl::Seconds(10))));
  const Address& address = addresses.front();
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) {
    return ErrnoStatus(errno, "socket");
  }
  // A restarted job may take its predecessor's port at once.
  DT_RETURN_IF_ERROR(SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"));
  if (::bind(fd.get(), address.get(), address.bytes) != 0 ||
      ::listen(fd.get(), options.backlog) != 0) {
    return ErrnoStatus(errno, absl::StrCat("listen on ", where.ToString()));
  }
  return fd;
}

absl::StatusOr<UniqueFd> Connect(const Endpoint& peer, Deadline deadline,
                                 const ConnectOptions& options) {
  SplitMix64 jitter(static_cast<uint64_t>(Clock::Real().MonotonicNanos()));
  absl::Duration pause = absl::Milliseconds(5);
  absl::Status last = absl::UnavailableError("no address");
  for (int tries = 1;; ++tries) {
    auto addresses = Resolve(peer.host, peer.port, deadline);
    if (addresses.ok()) {
      for (const Address& address : *addresses) {
        auto fd = ConnectTo(address, deadline, options);
        if (fd.ok()) {
          return fd;
        }
        last = fd.status();
      }
    } else {
      last = addresses.status();
    }
    if (last.code() == absl::StatusCode::kInvalidArgument || !options.retry_refused ||
        deadline.Remaining() <= pause) {
      const std::string text = absl::StrFormat("cannot connect to %s: %s (%d %s)", peer.ToString(),
                                               last.message(), tries, tries == 1 ? "try" : "tries");
      return deadline.Remaining() <= pause && !absl::IsInvalidArgument(last)
                 ? absl::DeadlineExceededError(text)
                 : absl::Status(last.code(), text);
    }
    // Spread the retries of many ranks.
    Clock::Real().Sleep(pause * (0.5 + jitter.Uniform()));
    pause = std::min(pause * 2, absl::Milliseconds(250));
  }
}

absl::StatusOr<UniqueFd> AcceptNow(int listener) {
  while (true) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid() || errno == EAGAIN || errno == EWOULDBLOCK) {
      return fd;
    }
    // These are errors of one incoming connection, not of the listener.
    if (errno != EINTR && errno != ECONNABORTED && errno != EPROTO && errno != ENETDOWN &&
        errno != EHOSTUNREACH && errno != ENETUNREACH && errno != EPERM) {
      return ErrnoStatus(errno, "accept");
    }
  }
}

Endpoint LocalEndpoint(int fd) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof(storage);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &bytes) == 0 ? EndpointOf(storage)
                                                                             : Endpoint{};
}

Endpoint PeerEndpoint(int fd) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof(storage);
  return getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &bytes) == 0 ? EndpointOf(storage)
                                                                             : Endpoint{};
}

std::string ConnectionName(int fd) {
  return absl::StrCat(LocalEndpoint(fd).ToString(), " -> ", PeerEndpoint(fd).ToString());
}

absl::StatusOr<std::vector<LocalAddress>> LocalAddresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return ErrnoStatus(errno, "getifaddrs");
  }
  std::vector<LocalAddress> addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) {
      continue;
    }
    sockaddr_storage storage{};
    std::memcpy(&storage, entry->ifa_addr,
                family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    LocalAddress address{entry->ifa_name, EndpointOf(storage).host, family == AF_INET6};
    if (!absl::StartsWith(address.address, "fe80:")) {
      addresses.push_back(std::move(address));
    }
  }
  freeifaddrs(list);
  return addresses;
}

absl::StatusOr<std::string> InterfaceAddress(absl::string_view interface) {
  DT_ASSIGN_OR_RETURN(const auto addresses, LocalAddresses());
  for (const bool ipv6 : {false, true}) {
    for (const LocalAddress& address : addresses) {
      if (address.interface == interface && address.ipv6 == ipv6) {
        return address.address;
      }
    }
  }
  return absl::NotFoundError(absl::StrFormat(
      "no address on interface \"%s\"; interfaces with one: %s", interface, Names(addresses)));
}

absl::Status WaitReadable(int fd, Deadline deadline) { return WaitFor(fd, POLLIN, deadline); }
absl::Status WaitWritable(int fd, Deadline deadline) { return WaitFor(fd, POLLOUT, deadline); }

absl::Status ReadExactly(int fd, absl::Span<std::byte> bytes, Deadline deadline) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::recv(fd, bytes.data() + done, bytes.size() - done, MSG_DONTWAIT);
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (got == 0) {
      return absl::UnavailableError(absl::StrFormat("%s: the peer closed after %d of %d bytes",
                                                    ConnectionName(fd), done, bytes.size()));
    } else if (errno == EAGAIN) {
      DT_RETURN_IF_ERROR(Annotate(WaitReadable(fd, deadline),
                                  absl::StrFormat("%d of %d bytes read", done, bytes.size())));
    } else if (errno != EINTR) {
      return absl::UnavailableError(absl::StrFormat("%s: read failed after %d of %d bytes: %s",
                                                    ConnectionName(fd), done, bytes.size(),
                                                    std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteAll(int fd, absl::Span<const std::byte> bytes, Deadline deadline) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put =
        ::send(fd, bytes.data() + done, bytes.size() - done, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put >= 0) {
      done += static_cast<size_t>(put);
    } else if (errno == EAGAIN) {
      DT_RETURN_IF_ERROR(Annotate(WaitWritable(fd, deadline),
                                  absl::StrFormat("%d of %d bytes written", done, bytes.size())));
    } else if (errno != EINTR) {
      return absl::UnavailableError(absl::StrFormat("%s: write failed after %d of %d bytes: %s",
                                                    ConnectionName(fd), done, bytes.size(),
                                                    std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

}  // namespace dtrain::comm
