// Collectives between several nodes: shared memory inside, messages across.
//
// An all-reduce is reduced by slices inside each node, each slice is all-reduced between the ranks
// that have the same place on their nodes, and the slices are gathered inside: a node sends and
// receives what one rank of it would, whatever their number. A reduce-scatter sums, inside each
// node, the parts of all ranks that have one place, and scatters the sums between these ranks; an
// all-gather goes the other way. Sums are over the ranks of a node first, then over nodes: the same
// bits on every rank and in every run, but not those of rank order over all. So reductions of a
// deterministic group go over messages between all ranks, as broadcasts and all-to-alls do. 16-bit
// values, as a type or on the wire, are summed in fp32 inside the node and rounded when they leave
// it. A rank that waits in its node's memory also reads the messages of other nodes' ranks, and
// tells those that ask whom it waits for. Driven by one thread at a time, except for Break.
//
// Nodes may hold different numbers of ranks if the ranks of each node are consecutive. Then each
// node has as many lanes as the smallest node has ranks. Its first ranks are the lanes and move
// slices of the data between nodes; the others take part inside the node only. A reduce-scatter or
// an all-gather moves as many bytes for a smaller node as for the largest, which costs no time: no
// node sends more than the largest must.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/collectives/message_collectives.h"
#include "comm/collectives/shm_collectives.h"
#include "comm/node_layout.h"

namespace dtrain::comm {

class HierarchicalCollectives final : public Backend {
 public:
  // `across` and `all` use the same connections; `across` is null where the layout's is empty.
  HierarchicalCollectives(std::unique_ptr<ShmCollectives> local,
                          std::unique_ptr<MessageCollectives> across,
                          std::unique_ptr<MessageCollectives> all, NodeLayout layout,
                          bool deterministic);

  std::string transport() const override { return "shm+" + all_->transport(); }
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
  absl::Status PollPeers() override {
    absl::Status said = local_->PollPeers();
    said.Update(all_->PollPeers());
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
  // Not OK: a wait in the node's memory must end, because of `context` or of a rank of another node
  // that gave up.
  absl::Status Interrupted(const WaitContext& context) const;
  // Compares `call` inside the node, and begins it between the nodes. There it is compared only
  // when the node's sums are about to leave, so that no rank waits for another node before it sums.
  // If nodes differ the call fails, and this rank's buffer holds sums of its node by then.
  absl::Status MeetBoth(const Call& call, const WaitContext& context);
  // The call between the ranks of one place, on other buffers.
  static Call Between(const Call& call, const Buffer& input, const Buffer& output);

  // For nodes with different numbers of ranks (hierarchical_lanes.cc).
  absl::Status ReduceScatterInLanes(const Call& call, const WaitContext& context);
  absl::Status AllGatherInLanes(const Call& call, const WaitContext& context);
  // The slice that `lane` moves of the data of `node`'s ranks: bytes of a buffer with `rank_bytes`
  // for each rank.
  Slice LaneSlice(size_t node, int lane, size_t rank_bytes, DType dtype) const;
  // The slices of such a buffer that each of this node's ranks moves, node by node: none if it is
  // no lane.
  ShmCollectives::Shares LaneShares(size_t rank_bytes, DType dtype) const;
  // The same for this node's part alone.
  ShmCollectives::Shares OwnSlices(size_t rank_bytes, DType dtype) const;

  const std::unique_ptr<ShmCollectives> local_;
  const std::unique_ptr<MessageCollectives> across_;
  const std::unique_ptr<MessageCollectives> all_;
  const NodeLayout layout_;
  const bool deterministic_;
  std::vector<char> parts_;  // The parts of all ranks that have this place, or of this lane.
};

// The context of a wait in the node's memory that also ends when a rank of another node gives up.
class HierarchicalCollectives::Inside {
 public:
  Inside(const HierarchicalCollectives& all, const WaitContext& outer)
      : interrupted_{all, outer},
        context_{outer.deadline, interrupted_, outer.may_spin, outer.spin} {}
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  const WaitContext& context() const { return context_; }

 private:
  struct Interruption {
    const HierarchicalCollectives& all;
    const WaitContext& outer;
    absl::Status operator()() const { return all.Interrupted(outer); }
  };
  const Interruption interrupted_;
  const WaitContext context_;
};

}  // namespace dtrain::comm
