// A TCP relay between a client and a server that a test can listen to, alter and cut.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "comm/net/socket.h"

namespace dtrain::comm {

// Relays one connection at a time to `target`, in a thread of its own.
class TcpProxy {
 public:
  explicit TcpProxy(Endpoint target) : target_(std::move(target)) {
    listener_ = Listen({"127.0.0.1", 0}).value();
    endpoint_ = LocalEndpoint(listener_.get());
    thread_ = std::thread([this] { Run(); });
  }
  ~TcpProxy() {
    stop_ = true;
    thread_.join();
  }
  const Endpoint& endpoint() const { return endpoint_; }
  // Inverts one bit of the byte at `offset` (counted from the connection's start) that goes from
  // the client to the server.
  void FlipByteToServer(int64_t offset) { flip_to_server_ = offset; }
  // All bytes that clients have sent so far.
  std::string FromClient() {
    std::lock_guard lock(mutex_);
    return from_client_;
  }

 private:
  void Run() {
    while (!stop_) {
      if (!WaitReadable(listener_.get(), Deadline::After(absl::Milliseconds(20))).ok()) {
        continue;
      }
      UniqueFd client = AcceptNow(listener_.get()).value();
      auto server = Connect(target_, Deadline::After(absl::Seconds(5)));
      if (client.valid() && server.ok()) {
        Relay(client.get(), server->get());
      }
    }
  }
  void Relay(int client, int server) {
    std::array<char, 4096> bytes;
    int64_t to_server = 0;
    while (!stop_) {
      std::array<pollfd, 2> polls = {pollfd{client, POLLIN, 0}, pollfd{server, POLLIN, 0}};
      ::poll(polls.data(), polls.size(), 20);
      for (const bool up : {true, false}) {
        if (polls[up ? 0 : 1].revents == 0) {
          continue;
        }
        const ssize_t got = ::recv(up ? client : server, bytes.data(), bytes.size(), 0);
        if (got <= 0) {
          return;
        }
        if (up) {
          const int64_t at = flip_to_server_.load() - to_server;
          if (at >= 0 && at < got) {
            bytes[static_cast<size_t>(at)] ^= 1;
          }
          to_server += got;
          std::lock_guard lock(mutex_);
          from_client_.append(bytes.data(), static_cast<size_t>(got));
        }
        const auto piece = absl::MakeConstSpan(bytes).subspan(0, static_cast<size_t>(got));
        if (!WriteAll(up ? server : client,
                      {reinterpret_cast<const std::byte*>(piece.data()), piece.size()},
                      Deadline::After(absl::Seconds(10)))
                 .ok()) {
          return;
        }
      }
    }
  }

  const Endpoint target_;
  UniqueFd listener_;
  Endpoint endpoint_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> flip_to_server_{-1};
  std::mutex mutex_;
  std::string from_client_;
  std::thread thread_;
};

inline absl::Span<const std::byte> BytesOf(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// Whether the other end has closed `fd` by `deadline`; drops bytes that come before.
inline bool ClosedBy(int fd, Deadline deadline) {
  std::array<std::byte, 4096> dropped;
  while (true) {
    const ssize_t got = ::recv(fd, dropped.data(), dropped.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
      return true;
    }
    if (got < 0 && !WaitReadable(fd, deadline).ok()) {
      return false;
    }
  }
}

}  // namespace dtrain::comm
