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
  // Does all transfers, at the same time if possible; transfers between one pair in one direction
  // keep the given order. DeadlineExceeded names the peers that it still waits for, Unavailable the
  // peer that is gone and why, if known; otherwise the error is that of `context.interrupted`.
  // After an error nothing may be moved any more.
  // `meanwhile` is called once, after everything that can be moved at once has been: for work that
  // does not touch the transfers' memory.
  // `ahead` are the transfers of the next Move, which is then given exactly these: they begin when
  // `meanwhile` has returned, after those of this call, and go on when this call has ended. So a
  // rank that waits for one peer's bytes does not delay peers that wait for its own. Errors of
  // these transfers belong to the next Move. Empty: nothing begins.
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
  // Makes transfers of this memory cheaper; null if it makes no difference. The memory must not be
  // freed before the result is dropped. By the thread that calls Move. ResourceExhausted: it cannot
  // be pinned.
  virtual absl::StatusOr<std::unique_ptr<RegisteredMemory>> Register(void* /*data*/,
                                                                     size_t /*bytes*/) {
    return std::unique_ptr<RegisteredMemory>();
  }
  // The reason of a peer that gave up, or OK, without waiting. Called between Moves, by the thread
  // that calls Move.
  virtual absl::Status PollPeers() { return absl::OkStatus(); }
  // The lines over which ranks say why they give up and whom they wait for; null: there are none.
  virtual ControlLines* control() { return nullptr; }
  // The ranks of control() that the current Move, or one that failed, waits for. By its thread.
  virtual std::vector<int> Awaited() const { return {}; }
  // Called after an error when the peers have been told, by the thread that called Move: from then
  // on no peer writes into this rank's memory, so its owner may free it.
  virtual void Withdraw() {}
  // Tells the peers why and closes all connections. Never blocks; idempotent.
  virtual void Shutdown(const absl::Status& reason) = 0;
  // "rank 1 (node a, pid 12)".
  virtual std::string PeerName(int peer) const = 0;
};

// DeadlineExceeded with the names of the ranks that `transport` waits for. REQUIRES: its ranks are
// those of control().
absl::Status TimedOut(const Transport& transport);

}  // namespace dtrain::comm
