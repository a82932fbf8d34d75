// Ports of this host for tests, which run beside each other.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>

#include "base/check.h"
#include "base/unique_fd.h"

namespace dtrain::test_ports {

// A socket that is bound to a port of 127.0.0.1 (0: any) and does not listen: whoever connects is
// refused, and nobody else gets the port. Not valid where another one has it.
inline UniqueFd BindLoopback(int port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    fd.reset();
  }
  return fd;
}

inline int PortOf(const UniqueFd& bound) {
  sockaddr_in address{};
  socklen_t bytes = sizeof(address);
  DT_CHECK_EQ(getsockname(bound.get(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  return ntohs(address.sin_port);
}

// A port of 127.0.0.1 for a server that is started later, in another process. It lies below those
// that Linux gives to connections and to listeners that ask for any, and processes that run beside
// each other, whose numbers are near, look for it at different places: so it is still free then.
inline int UnusedPort() {
  constexpr int kFirst = 10'000;
  constexpr int kOfAProcess = 32;
  constexpr int kPorts = 688 * kOfAProcess;
  static std::atomic<int> given{0};
  for (int tries = 0; tries < kPorts; ++tries) {
    const int port = kFirst + (getpid() % kPorts * kOfAProcess + given++) % kPorts;
    if (BindLoopback(port).valid()) {
      return port;
    }
  }
  DT_CHECK(false) << "no port of 127.0.0.1 from " << kFirst << " to " << kFirst + kPorts - 1
                  << " is free";
  return 0;
}

}  // namespace dtrain::test_ports
