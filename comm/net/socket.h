// TCP sockets with deadlines: listen on a chosen address, connect, read and write whole buffers.
//
// Thread-safe functions on plain descriptors; the caller owns each UniqueFd. All sockets are
// non-blocking, close-on-exec, TCP_NODELAY, with keep-alive and TCP_USER_TIMEOUT, so a peer whose
// host died is noticed. IPv4, IPv6 and names. Nothing here raises SIGPIPE.
//
// How a dead host is noticed. The kernel asks a peer that says nothing (keep-alive) only while
// nothing is on its way to it. Bytes that it does not acknowledge are sent again for about 15
// minutes, and bytes that wait because its window is closed are waited for without end as long as
// its kernel answers the probes. TCP_USER_TIMEOUT bounds all three, but it cannot tell a dead host
// from a live process that reads late: it also counts the time for which a window stays closed. So
// connections with little traffic keep it. Connections that carry data turn it off
// (WaitForLateReader) and have a silent connection beside them that notices.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/unique_fd.h"

namespace dtrain::comm {

// The event that a non-blocking step waits for.
enum class IoWant { kNothing, kRead, kWrite };

struct Endpoint {
  std::string host{};  // A literal address or a name; "" in results means unknown.
  int port = 0;
  // "10.0.0.1:29500", "[::1]:29500".
  std::string ToString() const;
};

// Reads "host:port" or "[v6]:port"; port in [0, 65535].
absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text);

// Whether `host` is a literal of the loopback network, or the name localhost.
bool IsLoopback(absl::string_view host);
// Whether `host` is 0.0.0.0, :: or "" (listen on every interface).
bool IsWildcard(absl::string_view host);

// How long a peer's host may answer nothing.
inline constexpr absl::Duration kSilenceMax = absl::Seconds(30);

struct ListenOptions {
  bool any_address = false;  // Allow a wildcard address: only when the user asked for it.
  int backlog = 1024;
};
// A listening socket; port 0 takes a free one (ask LocalEndpoint). A wildcard host is refused
// (InvalidArgument) unless any_address.
absl::StatusOr<UniqueFd> Listen(const Endpoint& where, const ListenOptions& options = {});

struct ConnectOptions {
  // Try again while nothing listens yet, until the deadline: ranks may start before their server.
  bool retry_refused = true;
  // How long the peer may acknowledge nothing before the connection counts as broken.
  absl::Duration user_timeout = kSilenceMax;
};
// A connected socket. Tries each address of the name. Unavailable or DeadlineExceeded name the
// peer, the last cause and the number of tries.
absl::StatusOr<UniqueFd> Connect(const Endpoint& peer, Deadline deadline,
                                 const ConnectOptions& options = {});

// The next waiting connection of `listener`, or an invalid fd when there is none. Never blocks.
absl::StatusOr<UniqueFd> AcceptNow(int listener);

// The two ends of a socket; an empty host when it has none (any more).
Endpoint LocalEndpoint(int fd);
Endpoint PeerEndpoint(int fd);
// "10.0.0.1:5000 -> 10.0.0.2:6000": this end, then the other.
std::string ConnectionName(int fd);

struct LocalAddress {
  std::string interface;
  std::string address;  // Without a scope; link-local IPv6 addresses are left out.
  bool ipv6 = false;
};
// The addresses of interfaces that are up, in the kernel's order.
absl::StatusOr<std::vector<LocalAddress>> LocalAddresses();
// The first address of `interface`, IPv4 before IPv6; NotFound lists the interfaces there are.
absl::StatusOr<std::string> InterfaceAddress(absl::string_view interface);

// Waits until `fd` can be read (written); an error or hang-up counts as ready.
absl::Status WaitReadable(int fd, Deadline deadline);
absl::Status WaitWritable(int fd, Deadline deadline);

// Moves exactly `bytes.size()` bytes. Unavailable when the peer is gone, DeadlineExceeded when time
// is up; both name the two ends and how far it came.
absl::Status ReadExactly(int fd, absl::Span<std::byte> bytes, Deadline deadline);
absl::Status WriteAll(int fd, absl::Span<const std::byte> bytes, Deadline deadline);

// Sets no-delay, keep-alive and the user timeout on a TCP socket. An idle connection is asked
// after a third of `user_timeout` whether its peer's host is there, and breaks after all of it.
absl::Status PrepareSocket(int fd, absl::Duration user_timeout);
// From now on the peer may leave bytes unread for as long as it likes. Keep-alive stays: a host
// that dies while nothing is on its way to it is noticed as before.
absl::Status WaitForLateReader(int fd);

// The error of a broken connection: Unavailable, with the text of `error_number`.
absl::Status BrokenConnection(int error_number);
// Whether `status`, or the error that it was derived from, says that the peer's host no longer
// answers or cannot be reached. False when only the peer's process ended, because its host reports
// that.
bool HostFellSilent(const absl::Status& status);
// Whether `status` says that the name service did not answer, which says nothing of the name.
bool NameServiceFailed(const absl::Status& status);

}  // namespace dtrain::comm
