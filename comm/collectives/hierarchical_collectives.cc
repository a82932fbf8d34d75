#include "comm/collectives/hierarchical_collectives.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "comm/collectives/algorithm.h"

namespace dtrain::comm {
namespace {

// The parts of the ranks of each place, of a buffer with `rank_bytes` for every rank.
ShmCollectives::Shares SharesOf(const std::vector<std::vector<int>>& places, size_t rank_bytes) {
  ShmCollectives::Shares shares(places.size());
  for (size_t place = 0; place < places.size(); ++place) {
    shares[place].room = rank_bytes;
    for (const int rank : places[place]) {
      shares[place].parts.push_back({static_cast<size_t>(rank) * rank_bytes, rank_bytes});
    }
  }
  return shares;
}

}  // namespace

HierarchicalCollectives::HierarchicalCollectives(std::unique_ptr<ShmCollectives> local,
                                                 std::unique_ptr<MessageCollectives> across,
                                                 std::unique_ptr<MessageCollectives> all,
                                                 NodeLayout layout, bool deterministic)
    : local_(std::move(local)),
      across_(std::move(across)),
      all_(std::move(all)),
      layout_(std::move(layout)),
      deterministic_(deterministic) {}

bool HierarchicalCollectives::InNodesFirst(const CallHeader& header) const {
  if (header.kind == CallKind::kAllGather) {
    return true;
  }
  if (header.kind != CallKind::kAllReduce && header.kind != CallKind::kReduceScatter) {
    return false;
  }
  // A node's fp32 sum is rounded once, when it leaves the node. Averages in fp16 are left out: a
  // node's sum might overflow where the average does not.
  const bool narrow = header.dtype == DType::kBFloat16 ||
                      (header.dtype == DType::kFloat16 && header.op != ReduceOp::kAverage);
  const bool rounds_between = !deterministic_ && (narrow || header.wire != Wire::kSameAsBuffer);
  return rounds_between || PartialSumsMayTravel(header, deterministic_);
}

absl::Status HierarchicalCollectives::Begin(const Call& call, const WaitContext& context) {
  return InNodesFirst(call.header) ? local_->Begin(call, context) : all_->Begin(call, context);
}

absl::Status HierarchicalCollectives::NameTheMissing(const absl::Status& timed_out,
                                                     const WaitContext& context) {
  const std::vector<int> awaited = local_->Awaited();
  return awaited.empty() ? all_->NameTheMissing(timed_out, context)
                         : all_->NameTheMissing(timed_out, awaited, context);
}

absl::Status HierarchicalCollectives::Interrupted(const WaitContext& context) const {
  DT_RETURN_IF_ERROR(context.interrupted());
  return all_->PollPeers([this] { return local_->Awaited(); });
}

absl::Status HierarchicalCollectives::MeetBoth(const Call& call, const WaitContext& context) {
  const Inside inside(*this, context);
  DT_RETURN_IF_ERROR(local_->Meet(call, inside.context()));
  return across_ == nullptr ? absl::OkStatus() : across_->Begin(call, context);
}

Call HierarchicalCollectives::Between(const Call& call, const Buffer& input, const Buffer& output) {
  Call between = call;
  between.input = input;
  between.output = output;
  between.header.bytes = std::max(input.bytes, output.bytes);
  return between;
}

absl::Status HierarchicalCollectives::AllReduce(const Call& call, const WaitContext& context) {
  if (!InNodesFirst(call.header)) {
    return all_->AllReduce(call, context);
  }
  const Inside inside(*this, context);
  DT_RETURN_IF_ERROR(MeetBoth(call, context));
  DT_ASSIGN_OR_RETURN(const Buffer slice,
                      local_->ReduceSlice(call, layout_.lanes, inside.context()));
  double squares = 0;
  if (across_ != nullptr) {
    Call between = Between(call, slice, slice);
    between.sum_of_squares = call.sum_of_squares != nullptr ? &squares : nullptr;
    DT_RETURN_IF_ERROR(across_->AllReduce(between, context));
  }
  return local_->GatherSlices(call, layout_.lanes, squares, inside.context());
}

absl::Status HierarchicalCollectives::ReduceScatter(const Call& call, const WaitContext& context) {
  if (!InNodesFirst(call.header)) {
    return all_->ReduceScatter(call, context);
  }
  if (!layout_.even) {
    return ReduceScatterInLanes(call, context);
  }
  const Inside inside(*this, context);
  DT_RETURN_IF_ERROR(MeetBoth(call, context));
  Buffer sums = call.output;
  sums.bytes = call.output.bytes * layout_.places[0].size();
  parts_.resize(std::max(parts_.size(), sums.bytes));
  sums.data = parts_.data();
  DT_RETURN_IF_ERROR(local_->ReduceParts(call, SharesOf(layout_.places, call.output.bytes),
                                         parts_.data(), inside.context()));
  double squares = 0;
  Call between = Between(call, sums, call.output);
  between.sum_of_squares = call.sum_of_squares != nullptr ? &squares : nullptr;
  DT_RETURN_IF_ERROR(across_->ReduceScatter(between, context));
  if (call.sum_of_squares != nullptr) {
    DT_ASSIGN_OR_RETURN(*call.sum_of_squares, local_->SumSquares(call, squares, inside.context()));
  }
  return absl::OkStatus();
}

absl::Status HierarchicalCollectives::AllGather(const Call& call, const WaitContext& context) {
  if (!layout_.even) {
    return AllGatherInLanes(call, context);
  }
  const Inside inside(*this, context);
  DT_RETURN_IF_ERROR(MeetBoth(call, context));
  Buffer gathered = call.input;
  gathered.bytes = call.input.bytes * layout_.places[0].size();
  parts_.resize(std::max(parts_.size(), gathered.bytes));
  gathered.data = parts_.data();
  DT_RETURN_IF_ERROR(across_->AllGather(Between(call, call.input, gathered), context));
  return local_->GatherParts(SharesOf(layout_.places, call.input.bytes), parts_.data(),
                             {0, call.output.bytes}, static_cast<char*>(call.output.data),
                             inside.context());
}

absl::StatusOr<std::unique_ptr<Registration>> HierarchicalCollectives::Register(
    const Call& call, std::shared_ptr<SymmetricBuffer> buffer, const WaitContext& context) {
  DT_RETURN_IF_ERROR(all_->Run(call, context));
  DT_ASSIGN_OR_RETURN(auto between, all_->Hold(buffer));
  const Inside inside(*this, context);
  DT_ASSIGN_OR_RETURN(auto local, local_->Register(call, std::move(buffer), inside.context()));
  local->more = std::move(between);
  return local;
}

void HierarchicalCollectives::Break(const absl::Status& reason) {
  local_->Break(reason);
  all_->Break(reason);
}

}  // namespace dtrain::comm
