// A Transport over connected streams to each peer: TCP between hosts, Unix sockets inside one.
//
// Long messages are cut into as many parts as there are connections to the peer (StripeOf), so that
// one lost packet holds up one of them and the paths of a network are all used.
// One thread sleeps in poll for all peers and moves data in both directions as far as possible, so
// two ranks that send to each other cannot block each other. A second, silent connection to each
// peer carries messages that must overtake data: why a rank gave up, and whom it waits for
// (ControlLines). The kernel closes all of them when a process dies, so that peers learn it here.
#pragma once

#include <poll.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "comm/collectives/partition.h"
#include "comm/transport/channel.h"
#include "comm/transport/control_lines.h"
#include "comm/transport/transport.h"
#include "comm/transport/wait_context.h"

namespace dtrain::comm {

struct StreamPeer {
  std::vector<std::unique_ptr<Channel>> data = {};  // None for this rank itself.
  std::unique_ptr<Channel> control = {};            // Null: reasons come from `explain` alone.
  std::string name = {};                            // "rank 1 (node a, pid 12)".
};

// Shorter messages go whole over the first connection, because a short part is not worth its system
// calls.
inline constexpr size_t kStripeBytesMin = size_t{256} << 10;

// The part of a message of `bytes` that goes over connection `index` of `connections`.
Slice StripeOf(size_t bytes, size_t connections, size_t index);

class StreamTransport final : public Transport {
 public:
  // `explain` may give a better status for a peer whose connection ended; OK: nothing is known.
  StreamTransport(int rank, std::vector<StreamPeer> peers,
                  std::function<absl::Status(int peer)> explain);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  using Transport::Move;
  absl::Status Move(absl::Span<const Transfer> transfers, const WaitContext& context,
                    absl::FunctionRef<void()> meanwhile, absl::Span<const Transfer> ahead) override;
  absl::Status PollPeers() override { return control_.ReadBetween(); }
  void Shutdown(const absl::Status& reason) override;
  std::string PeerName(int peer) const override {
    return peers_.at(static_cast<size_t>(peer)).name;
  }
  ControlLines* control() override { return &control_; }
  std::vector<int> Awaited() const override;

  // Adds the descriptors to poll: all lines that may bring a reason, and the connections of the
  // peers that are `awaited`. For a transport that moves its data over another network and keeps
  // these connections to learn at once of deaths and reasons; only ControlLines sends over them
  // meanwhile.
  void AddDescriptors(std::vector<pollfd>& items, absl::FunctionRef<bool(int peer)> awaited) const;
  // Whether the connection to `peer` has ended, or its host fell silent.
  bool Ended(int peer) const;
  // The best known explanation of why `peer` does not answer: its reason, for which this waits a
  // moment, or that it is gone, or `symptom`. `awaited`: see ControlLines.
  absl::Status Explain(int peer, const absl::Status& symptom, ControlLines::AwaitedOf awaited);

 private:
  // The messages that are left on one connection in one direction.
  struct Lane {
    std::vector<absl::Span<std::byte>> queue;
    size_t next = 0;
    // Number of messages in the queue that the current Move needs; the rest belong to the next
    // Move.
    size_t wanted = 0;
    // An error of the next Move's messages. That Move fails with it, unless its caller learns a
    // better reason before, such as that the ranks are in different calls.
    absl::Status failure = {};
    bool idle() const { return next == queue.size() || (done() && !failure.ok()); }
    bool done() const { return next >= wanted; }
    // A Move begins, which needs everything in the queue.
    void Begin() {
      queue.erase(queue.begin(), queue.begin() + static_cast<ptrdiff_t>(next));
      next = 0;
      wanted = queue.size();
    }
  };
  struct Lanes {
    Lane send;
    Lane receive;
    bool done() const { return send.done() && receive.done(); }
  };
  // Queues `transfers` after those that are queued.
  void Append(absl::Span<const Transfer> transfers);
  // Moves as much as possible without waiting.
  absl::Status Progress(int peer, Channel& channel, Lane& lane, bool sending);
  absl::Status Gone(int peer, const absl::Status& what) {
    return Gone(peer, what, [this] { return Awaited(); });
  }
  absl::Status Gone(int peer, const absl::Status& what, ControlLines::AwaitedOf awaited);
  // Not OK: the host of a peer that this Move waits for fell silent.
  absl::Status FindSilentHost();
  absl::Status WaitForAny(const WaitContext& context);
  // Spins for a moment while a compute thread waits for this call, and gives whether a descriptor
  // of polled_ is ready: to sleep and be woken takes longer, above all in a virtual machine.
  bool Spin(const WaitContext& context);

  const int rank_;
  const std::vector<StreamPeer> peers_;
  ControlLines control_;
  const std::function<absl::Status(int)> explain_;
  std::vector<std::vector<Lanes>> lanes_;  // By peer and connection.
  bool ahead_ = false;                     // The transfers of the next Move are queued.
  std::vector<pollfd> polled_;             // Control connections first.
  SpinRecord spins_;
  std::mutex shutdown_mutex_;
  bool shut_down_ = false;
};

}  // namespace dtrain::comm
