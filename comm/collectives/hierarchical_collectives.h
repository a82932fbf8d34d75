// Collectives between several nodes that hold as many ranks each: shared memory inside, messages
// across.
//
// An all-reduce is reduced by slices inside each node, each slice is all-reduced between the ranks
// that have the same place on their nodes, and the slices are gathered inside: a node sends and
// receives what one rank of it would, whatever their number. A reduce-scatter sums inside each node
// the parts of all ranks of a place and scatters them between those; an all-gather goes the other
// way. Sums are over the ranks of a node first, then over nodes: the same bits on every rank and in
// every run, but not those of rank order over all. So reductions of a deterministic group go over
// messages between all ranks, as broadcasts and all-to-alls do. What has 16 bits, as a type or on
// the wire, is summed in fp32 inside the node and rounded where it leaves. A rank that waits in its
// node's memory hears the other nodes' ranks too, and tells those that ask whom it waits for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/collectives/message_collectives.h"
#include "comm/collectives/shm_collectives.h"

namespace dtrain::comm {

class HierarchicalCollectives final : public Backend {
 public:
  // `across` and `all` use the same connections; `places` are those of NodeLayout.
  HierarchicalCollectives(std::unique_ptr<ShmCollectives> local,
                          std::unique_ptr<MessageCollectives> across,
                          std::unique_ptr<MessageCollectives> all, ShmCollectives::Places places,
                          bool deterministic);

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
  void Withdraw() override { all_->Withdraw(); }
  absl::Status BrokenStatus() const override { return local_->BrokenStatus(); }
  absl::Status Glance() override {
    absl::Status said = local_->Glance();
    said.Update(all_->Glance());
    return said;
  }

  void NoteCall(const CallHeader& header) override { all_->NoteCall(header); }
  absl::Status NameTheMissing(const absl::Status& timed_out, const WaitContext& context) override;

  absl::Status Begin(const Call& call, const WaitContext& context) override;
  absl::Status Meet(const Call& call, const WaitContext& context) override {
    return all_->Meet(call, context);
  }
  absl::Status AllReduce(const Call& call, const WaitContext& context) override;
  absl::Status ReduceScatter(const Call& call, const WaitContext& context) override;
  absl::Status AllGather(const Call& call, const WaitContext& context) override;
  absl::Status Broadcast(const Call& call, const WaitContext& context) override {
    return all_->Broadcast(call, context);
  }
  absl::Status AllToAll(const Call& call, const WaitContext& context) override {
    return all_->AllToAll(call, context);
  }

 private:
  class Inside;
  // Whether the call goes through the nodes' memory.
  bool InNodesFirst(const CallHeader& header) const;
  // What ends a wait in the node's memory: `context`, or what a rank of another node says.
  absl::Status Interrupted(const WaitContext& context) const;
  // Compares `call` inside the node, and begins it between the nodes: there it is compared when the
  // node's sums are to leave, so that no rank waits for another node before it sums. Where nodes
  // differ the call fails, and this rank's buffer holds sums of its node by then.
  absl::Status MeetBoth(const Call& call, const WaitContext& context);
  // The call between the ranks of one place, on other buffers.
  static Call Between(const Call& call, const Buffer& input, const Buffer& output);

  const std::unique_ptr<ShmCollectives> local_;
  const std::unique_ptr<MessageCollectives> across_;
  const std::unique_ptr<MessageCollectives> all_;
  const ShmCollectives::Places places_;
  const bool deterministic_;
  std::vector<char> parts_;  // Of all ranks of this place.
};

}  // namespace dtrain::comm
