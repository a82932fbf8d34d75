// The fault-injecting twin of every Transport, for tests.
//
// Thread-safe where the wrapped transport is; set the fault before the transport is used.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/transport/transport.h"

namespace dtrain::comm {

struct TransportFault {
  int at_move = -1;         // The fault begins at this call of Move (0 is the first).
  absl::Status error = {};  // If not OK, that Move fails with it.
  absl::Duration delay = absl::ZeroDuration();  // Delay before each Move from then on.
  int flip_byte_from_peer = -1;                 // Alters the first byte that this peer sent.
};

class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, TransportFault fault)
      : inner_(std::move(inner)), fault_(std::move(fault)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  using Transport::Move;
  absl::Status Move(absl::Span<const Transfer> transfers, const WaitContext& context,
                    absl::FunctionRef<void()> meanwhile,
                    absl::Span<const Transfer> ahead) override {
    const bool faulty = fault_.at_move >= 0 && moves_++ >= fault_.at_move;
    if (faulty) {
      Clock::Real().Sleep(fault_.delay);
      if (!fault_.error.ok()) {
        inner_->Shutdown(fault_.error);
        return fault_.error;
      }
    }
    const absl::Status status = inner_->Move(transfers, context, meanwhile, ahead);
    for (const Transfer& transfer : transfers) {
      if (faulty && status.ok() && transfer.direction == Transfer::Direction::kReceive &&
          transfer.peer == fault_.flip_byte_from_peer && transfer.bytes != 0) {
        *static_cast<unsigned char*>(transfer.data) ^= 1;
      }
    }
    return status;
  }
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> Register(void* data, size_t bytes) override {
    return inner_->Register(data, bytes);
  }
  absl::Status PollPeers() override { return inner_->PollPeers(); }
  ControlLines* control() override { return inner_->control(); }
  std::vector<int> Awaited() const override { return inner_->Awaited(); }
  void Withdraw() override { inner_->Withdraw(); }
  void Shutdown(const absl::Status& reason) override { inner_->Shutdown(reason); }
  std::string PeerName(int peer) const override { return inner_->PeerName(peer); }

 private:
  const std::unique_ptr<Transport> inner_;
  const TransportFault fault_;
  int moves_ = 0;
};

}  // namespace dtrain::comm
