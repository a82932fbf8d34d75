// A Transport over connected stream sockets, one to each peer: TCP between hosts, Unix sockets
// inside one.
//
// One thread sleeps in poll for all peers and moves what can be moved in both directions, so two
// ranks that send to each other cannot block each other.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/unique_fd.h"
#include "comm/transport/transport.h"

namespace dtrain::comm {

struct StreamPeer {
  int fd = -1;       // Non-blocking; -1 for this rank itself.
  std::string name;  // "rank 1 (node a, pid 12)".
};

class StreamTransport final : public Transport {
 public:
  // The caller keeps the descriptors open as long as this lives. `explain` may give a better status
  // for a peer whose connection ended (that it died, or why it gave up); OK: nothing is known.
  StreamTransport(int rank, std::vector<StreamPeer> peers,
                  std::function<absl::Status(int peer)> explain);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  absl::Status Move(absl::Span<const Transfer> transfers, const WaitContext& context) override;
  void Shutdown(const absl::Status& reason) override;
  std::string PeerName(int peer) const override {
    return peers_.at(static_cast<size_t>(peer)).name;
  }

 private:
  // What is left to move over one connection in one direction.
  struct Lane {
    std::vector<const Transfer*> queue;
    size_t next = 0;
    size_t moved = 0;  // Bytes of queue[next].
    bool idle() const { return next == queue.size(); }
  };
  absl::StatusOr<bool> Progress(int peer, Lane& lane, bool sending);
  absl::Status Gone(int peer, const std::string& what) const;
  absl::Status WaitForAny(const WaitContext& context);
  absl::Status TimedOut() const;

  const int rank_;
  const std::vector<StreamPeer> peers_;
  const std::function<absl::Status(int)> explain_;
  std::vector<Lane> sends_;
  std::vector<Lane> receives_;
};

}  // namespace dtrain::comm
