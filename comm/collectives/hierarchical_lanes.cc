// HierarchicalCollectives where nodes hold different numbers of ranks.
#include <algorithm>

#include "base/status.h"
#include "comm/collectives/hierarchical_collectives.h"

namespace dtrain::comm {

Slice HierarchicalCollectives::LaneSlice(size_t node, int lane, size_t rank_bytes,
                                         DType dtype) const {
  const size_t element = DTypeBytes(dtype);
  const int first = layout_.node_starts[node];
  const int ranks = layout_.node_starts[node + 1] - first;
  const size_t count = static_cast<size_t>(ranks) * rank_bytes / element;
  const Slice slice = SliceOf(count, layout_.lanes, lane);
  return {static_cast<size_t>(first) * rank_bytes + slice.start * element, slice.count * element};
}

ShmCollectives::Shares HierarchicalCollectives::LaneShares(size_t rank_bytes, DType dtype) const {
  ShmCollectives::Shares shares(layout_.local.size());
  for (int lane = 0; lane < layout_.lanes; ++lane) {
    ShmCollectives::Share& share = shares[static_cast<size_t>(lane)];
    for (size_t node = 0; node < static_cast<size_t>(layout_.nodes); ++node) {
      share.parts.push_back(LaneSlice(node, lane, rank_bytes, dtype));
      share.room = std::max(share.room, share.parts.back().count);
    }
  }
  return shares;
}

ShmCollectives::Shares HierarchicalCollectives::OwnSlices(size_t rank_bytes, DType dtype) const {
  ShmCollectives::Shares shares(layout_.local.size());
  for (int lane = 0; lane < layout_.lanes; ++lane) {
    const Slice slice = LaneSlice(static_cast<size_t>(layout_.node), lane, rank_bytes, dtype);
    shares[static_cast<size_t>(lane)] = {{slice}, slice.count};
  }
  return shares;
}

absl::Status HierarchicalCollectives::ReduceScatterInLanes(const Call& call,
                                                           const WaitContext& context) {
  const Inside inside(*this, context);
  DT_RETURN_IF_ERROR(MeetBoth(call, context));
  const size_t rank_bytes = call.output.bytes;
  const DType dtype = call.header.dtype;
  const ShmCollectives::Shares shares = LaneShares(rank_bytes, dtype);
  const ShmCollectives::Share& mine = shares[static_cast<size_t>(layout_.place)];
  // This node's sums for every node, followed by all nodes' sums for this node.
  parts_.resize(std::max(parts_.size(), mine.bytes() + mine.room));
  char* const sums = parts_.data();
  char* const result = sums + mine.bytes();
  for (size_t node = 0; node < mine.parts.size(); ++node) {
    // The rest of the room is summed as well and counts in the norm, so it must be zero.
    const size_t filled = mine.parts[node].count;
    std::fill_n(sums + node * mine.room + filled, mine.room - filled, '\0');
  }
  DT_RETURN_IF_ERROR(local_->ReduceParts(call, shares, sums, inside.context()));
  double squares = 0;
  if (across_ != nullptr) {
    Call between = Between(call, {sums, mine.bytes(), dtype}, {result, mine.room, dtype});
    between.sum_of_squares = call.sum_of_squares != nullptr ? &squares : nullptr;
    DT_RETURN_IF_ERROR(across_->ReduceScatter(between, context));
  }
  const auto rank = static_cast<size_t>(layout_.local[static_cast<size_t>(layout_.place)]);
  DT_RETURN_IF_ERROR(local_->GatherParts(OwnSlices(rank_bytes, dtype), result,
                                         {rank * rank_bytes, rank_bytes},
                                         static_cast<char*>(call.output.data), inside.context()));
  if (call.sum_of_squares != nullptr) {
    DT_ASSIGN_OR_RETURN(*call.sum_of_squares, local_->SumSquares(call, squares, inside.context()));
  }
  return absl::OkStatus();
}

absl::Status HierarchicalCollectives::AllGatherInLanes(const Call& call,
                                                       const WaitContext& context) {
  const Inside inside(*this, context);
  DT_RETURN_IF_ERROR(MeetBoth(call, context));
  const size_t rank_bytes = call.input.bytes;
  const DType dtype = call.header.dtype;
  const ShmCollectives::Shares shares = LaneShares(rank_bytes, dtype);
  const ShmCollectives::Share& mine = shares[static_cast<size_t>(layout_.place)];
  // This lane's slice of this node's data, followed by the slices of all nodes.
  parts_.resize(std::max(parts_.size(), mine.room + mine.bytes()));
  char* const slice = parts_.data();
  char* const gathered = slice + mine.room;
  ShmCollectives::Shares inputs;
  for (const int rank : layout_.local) {
    const Slice part{static_cast<size_t>(rank) * rank_bytes, rank_bytes};
    inputs.push_back({{part}, rank_bytes});
  }
  const Slice window = mine.parts.empty() ? Slice() : mine.parts[static_cast<size_t>(layout_.node)];
  DT_RETURN_IF_ERROR(local_->GatherParts(inputs, static_cast<const char*>(call.input.data), window,
                                         slice, inside.context()));
  if (across_ != nullptr) {
    DT_RETURN_IF_ERROR(across_->AllGather(
        Between(call, {slice, mine.room, dtype}, {gathered, mine.bytes(), dtype}), context));
  }
  return local_->GatherParts(shares, gathered, {0, call.output.bytes},
                             static_cast<char*>(call.output.data), inside.context());
}

}  // namespace dtrain::comm
