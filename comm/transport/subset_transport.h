// Some of the ranks of a Transport as a Transport of their own, over the same connections.
//
// Ranks are numbered from 0 in the order of `members`. All users of one inner transport are the
// same thread, and make their moves in the same order on all ranks.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/transport/transport.h"

namespace dtrain::comm {

class SubsetTransport final : public Transport {
 public:
  // REQUIRES: the inner transport's rank is one of `members`.
  SubsetTransport(std::shared_ptr<Transport> inner, std::vector<int> members)
      : inner_(std::move(inner)), members_(std::move(members)) {
    while (members_.at(static_cast<size_t>(rank_)) != inner_->rank()) {
      ++rank_;
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  using Transport::Move;
  absl::Status Move(absl::Span<const Transfer> transfers, const WaitContext& context,
                    absl::FunctionRef<void()> meanwhile,
                    absl::Span<const Transfer> ahead) override {
    return inner_->Move(Renamed(transfers, transfers_), context, meanwhile, Renamed(ahead, ahead_));
  }
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> Register(void* data, size_t bytes) override {
    return inner_->Register(data, bytes);
  }
  absl::Status PollPeers() override { return inner_->PollPeers(); }
  ControlLines* control() override { return inner_->control(); }
  std::vector<int> Awaited() const override { return inner_->Awaited(); }
  void Withdraw() override { inner_->Withdraw(); }
  void Shutdown(const absl::Status& reason) override { inner_->Shutdown(reason); }
  std::string PeerName(int peer) const override {
    return inner_->PeerName(members_.at(static_cast<size_t>(peer)));
  }

 private:
  // The transfers with the inner transport's ranks, in `memory`.
  absl::Span<const Transfer> Renamed(absl::Span<const Transfer> transfers,
                                     std::vector<Transfer>& memory) const {
    memory.assign(transfers.begin(), transfers.end());
    for (Transfer& transfer : memory) {
      transfer.peer = members_.at(static_cast<size_t>(transfer.peer));
    }
    return memory;
  }
  const std::shared_ptr<Transport> inner_;
  const std::vector<int> members_;
  int rank_ = 0;
  std::vector<Transfer> transfers_;
  std::vector<Transfer> ahead_;
};

}  // namespace dtrain::comm
