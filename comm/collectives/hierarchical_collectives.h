// Collectives between several nodes that hold as many ranks each: shared memory inside, messages
// across.
//
// An all-reduce is reduced by slices inside each node, each slice is all-reduced between the ranks
// that have the same place on their nodes, and the slices are gathered inside: a node sends and
// receives what one rank of it would, whatever their number. Sums are over the ranks of a node in
// rank order first, then over nodes (in their order, unless a ring reduces): the same bits on every
// rank and in every run, but not those of rank order over all. So reductions of 16-bit types, and
// all of a deterministic group, go over messages between all ranks, as every other collective does.
// fp32 with 16 bits on the wire is summed in fp32 inside the node and rounded where it leaves.
#pragma once

#include <memory>
#include <string>

#include "comm/collectives/message_collectives.h"
#include "comm/collectives/shm_collectives.h"

namespace dtrain::comm {

class HierarchicalCollectives final : public Backend {
 public:
  // `across` and `all` use the same connections.
  HierarchicalCollectives(std::unique_ptr<ShmCollectives> local,
                          std::unique_ptr<MessageCollectives> across,
                          std::unique_ptr<MessageCollectives> all, bool deterministic);

  std::string transport() const override { return "shm+" + across_->transport(); }
  absl::Status RunPointToPoint(absl::Span<const Call> calls, const WaitContext& context) override {
    return all_->RunPointToPoint(calls, context);
  }
  absl::StatusOr<std::unique_ptr<Registration>> Register(const Call& call,
                                                         std::shared_ptr<SymmetricBuffer> buffer,
                                                         const WaitContext& context) override;
  bool Locate(const Registration& registration, const Buffer& buffer,
              CallHeader& header) const override {
    return local_->Locate(registration, buffer, header);
  }
  void Break(const absl::Status& reason) override;
  absl::Status BrokenStatus() const override { return local_->BrokenStatus(); }

  absl::Status Begin(const Call& call, const WaitContext& context) override;
  absl::Status Meet(const Call& call, const WaitContext& context) override {
    return all_->Meet(call, context);
  }
  absl::Status AllReduce(const Call& call, const WaitContext& context) override;
  absl::Status ReduceScatter(const Call& call, const WaitContext& context) override {
    return all_->ReduceScatter(call, context);
  }
  absl::Status AllGather(const Call& call, const WaitContext& context) override {
    return all_->AllGather(call, context);
  }
  absl::Status Broadcast(const Call& call, const WaitContext& context) override {
    return all_->Broadcast(call, context);
  }
  absl::Status AllToAll(const Call& call, const WaitContext& context) override {
    return all_->AllToAll(call, context);
  }

 private:
  // Whether the call is reduced inside the nodes first.
  bool InNodesFirst(const CallHeader& header) const;

  const std::unique_ptr<ShmCollectives> local_;
  const std::unique_ptr<MessageCollectives> across_;
  const std::unique_ptr<MessageCollectives> all_;
  const bool deterministic_;
};

}  // namespace dtrain::comm
