// The Transport seam: moves bytes between the ranks of a group.
//
// Real twins: StreamTransport (TCP or Unix sockets). Fault-injecting twin: FaultyTransport. One
// thread at a time calls Move; Shutdown may be called from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "comm/transport/wait_context.h"

namespace dtrain::comm {

class ControlLines;  // control_lines.h

struct Transfer {
  enum class Direction : unsigned char { kSend, kReceive };
  Direction direction = Direction::kSend;
  int peer = 0;
  void* data = nullptr;  // Read only when sending.
  size_t bytes = 0;
};

inline Transfer SendTo(int peer, const void* data, size_t bytes) {
  return {Transfer::Direction::kSend, peer, const_cast<void*>(data), bytes};
}
inline Transfer ReceiveFrom(int peer, void* data, size_t bytes) {
  return {Transfer::Direction::kReceive, peer, data, bytes};
}

// Memory that a transport reaches without copying it, until this is dropped. Any thread.
class RegisteredMemory {
 public:
  virtual ~RegisteredMemory() = default;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Does all transfers, at the same time where it can; those between one pair in one direction in
  // the order given. DeadlineExceeded names the peers that it still waits for, Unavailable the peer
  // that is gone (with what is known of it), else what `context.interrupted` said. After an error
  // nothing may be moved any more.
  // `meanwhile` is called once, after what can be moved at once has been: for work that touches
  // nothing of the transfers.
  // `ahead` are the transfers of the next Move, which is then given exactly these: they begin when
  // `meanwhile` has returned, behind those of this call, and go on after it. So a rank that waits
  // for one peer's bytes holds up nobody who waits for its own. An error of theirs is one
  // of the Move that waits for them, not of this one. None: nothing begins.
  virtual absl::Status Move(absl::Span<const Transfer> transfers, const WaitContext& context,
                            absl::FunctionRef<void()> meanwhile,
                            absl::Span<const Transfer> ahead) = 0;
  absl::Status Move(absl::Span<const Transfer> transfers, const WaitContext& context,
                    absl::FunctionRef<void()> meanwhile) {
    return Move(transfers, context, meanwhile, {});
  }
  absl::Status Move(absl::Span<const Transfer> transfers, const WaitContext& context) {
    return Move(transfers, context, [] {});
  }
  // Makes transfers of this memory cheaper; null where it makes no difference. The memory must not
  // be freed before the result is dropped. By the thread that calls Move. ResourceExhausted: it
  // cannot be pinned.
  virtual absl::StatusOr<std::unique_ptr<RegisteredMemory>> Register(void* /*data*/,
                                                                     size_t /*bytes*/) {
    return std::unique_ptr<RegisteredMemory>();
  }
  // What some peer gave as its reason to give up, or OK, without waiting; between Moves, by the
  // thread that calls them.
  virtual absl::Status Glance() { return absl::OkStatus(); }
  // Over which ranks say why they give up and whom they wait for; null: not in this way.
  virtual ControlLines* control() { return nullptr; }
  // Whom the Move under way, or that failed, waits for: as ranks of control(). By its thread.
  virtual std::vector<int> Awaited() const { return {}; }
  // After an error, when the peers have been told: no peer writes into this rank's memory any more,
  // which its owner may now free. By the thread that called Move.
  virtual void Withdraw() {}
  // Tells the peers why and closes all connections. Never blocks; idempotent.
  virtual void Shutdown(const absl::Status& reason) = 0;
  // "rank 1 (node a, pid 12)".
  virtual std::string PeerName(int peer) const = 0;
};

// DeadlineExceeded with those that `transport` waits for. REQUIRES: its ranks are those of
// control().
absl::Status TimedOut(const Transport& transport);

}  // namespace dtrain::comm
