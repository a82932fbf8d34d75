// A TCP relay between two ranks that alters single bytes on the way, in both directions.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/numeric/prng.h"
#include "base/unique_fd.h"
#include "comm/net/socket.h"

namespace dtrain::comm {

// The bytes of a direction that are altered. Offsets are from the connection's first byte.
struct FlipPlan {
  uint64_t seed = 0;
  int64_t first_to_server = 0;  // Bytes before these pass unaltered.
  int64_t first_to_client = 0;
  // The next flip comes 1 to `gap_max` bytes after the last; 0: no flips at all.
  int64_t gap_max = 0;
  int flips_max = std::numeric_limits<int>::max();  // Over all connections.
};

// Relays every connection to `target` in one thread of its own until it is destroyed.
class FlippingProxy {
 public:
  FlippingProxy(Endpoint target, const FlipPlan& plan)
      : target_(std::move(target)),
        plan_(plan),
        random_(plan.seed),
        listener_(Listen({"127.0.0.1", 0}).value()),
        endpoint_(LocalEndpoint(listener_.get())),
        thread_([this] { Run(); }) {}
  FlippingProxy(const FlippingProxy&) = delete;
  FlippingProxy& operator=(const FlippingProxy&) = delete;
  ~FlippingProxy() {
    stop_ = true;
    thread_.join();
  }
  const Endpoint& endpoint() const { return endpoint_; }
  int flips() const { return flips_; }

 private:
  // One direction of one connection.
  struct Lane {
    int from = -1;
    int to = -1;
    int64_t passed = 0;
    int64_t next_flip = 0;
    bool open = true;
  };
  struct Link {
    UniqueFd client;
    UniqueFd server;
    std::array<Lane, 2> lanes;
  };

  void Run() {
    std::vector<pollfd> items;
    std::vector<Lane*> lanes;
    while (!stop_) {
      items = {pollfd{listener_.get(), POLLIN, 0}};
      lanes = {nullptr};
      for (const auto& link : links_) {
        for (Lane& lane : link->lanes) {
          if (lane.open) {
            items.push_back({lane.from, POLLIN, 0});
            lanes.push_back(&lane);
          }
        }
      }
      ::poll(items.data(), items.size(), 5);
      for (size_t i = 1; i < items.size(); ++i) {
        if (items[i].revents != 0) {
          Pass(*lanes[i]);
        }
      }
      if (items[0].revents != 0) {
        Accept();
      }
    }
  }

  void Accept() {
    UniqueFd client = AcceptNow(listener_.get()).value();
    auto server = Connect(target_, Deadline::After(absl::Seconds(5)));
    if (!client.valid() || !server.ok()) {
      return;
    }
    auto link = std::make_unique<Link>();
    link->client = std::move(client);
    link->server = *std::move(server);
    const int ends[] = {link->client.get(), link->server.get()};
    link->lanes[0] = {ends[0], ends[1], 0, plan_.first_to_server + Gap(), true};
    link->lanes[1] = {ends[1], ends[0], 0, plan_.first_to_client + Gap(), true};
    links_.push_back(std::move(link));
  }

  int64_t Gap() {
    return plan_.gap_max == 0
               ? std::numeric_limits<int64_t>::max() / 2
               : static_cast<int64_t>(random_.Below(static_cast<uint64_t>(plan_.gap_max)));
  }

  void Pass(Lane& lane) {
    const ssize_t got = ::recv(lane.from, bytes_.data(), bytes_.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      return;
    }
    const size_t bytes = got > 0 ? static_cast<size_t>(got) : 0;
    while (lane.next_flip < lane.passed + got && flips_ < plan_.flips_max) {
      // A mask that changes one bit or several.
      const auto mask = static_cast<unsigned char>(1 + random_.Below(255));
      bytes_[static_cast<size_t>(lane.next_flip - lane.passed)] ^= std::byte{mask};
      lane.next_flip += 1 + Gap();
      ++flips_;
    }
    lane.passed += static_cast<int64_t>(bytes);
    if (bytes == 0 || !WriteAll(lane.to, absl::MakeConstSpan(bytes_).first(bytes),
                                Deadline::After(absl::Seconds(10)))
                           .ok()) {
      lane.open = false;
      ::shutdown(lane.to, SHUT_WR);
      ::shutdown(lane.from, SHUT_RD);
    }
  }

  const Endpoint target_;
  const FlipPlan plan_;
  SplitMix64 random_;
  const UniqueFd listener_;
  const Endpoint endpoint_;
  std::atomic<bool> stop_{false};
  std::atomic<int> flips_{0};
  std::vector<std::unique_ptr<Link>> links_;
  std::array<std::byte, 64 << 10> bytes_{};
  std::thread thread_;  // Last member, because it uses the others.
};

}  // namespace dtrain::comm
