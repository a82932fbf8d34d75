#include "comm/collectives/hierarchical_collectives.h"

#include <utility>

#include "base/status.h"
#include "comm/collectives/algorithm.h"

namespace dtrain::comm {

HierarchicalCollectives::HierarchicalCollectives(std::unique_ptr<ShmCollectives> local,
                                                 std::unique_ptr<MessageCollectives> across,
                                                 std::unique_ptr<MessageCollectives> all,
                                                 bool deterministic)
    : local_(std::move(local)),
      across_(std::move(across)),
      all_(std::move(all)),
      deterministic_(deterministic) {}

bool HierarchicalCollectives::InNodesFirst(const CallHeader& header) const {
  if (header.kind != CallKind::kAllReduce) {
    return false;
  }
  // A node's fp32 sum is rounded once, as it leaves, where the wire has 16 bits.
  const bool rounds_between = header.wire != Wire::kSameAsBuffer && !deterministic_;
  return rounds_between || PartialSumsMayTravel(header, deterministic_);
}

absl::Status HierarchicalCollectives::Begin(const Call& call, const WaitContext& context) {
  return InNodesFirst(call.header) ? local_->Begin(call, context) : all_->Begin(call, context);
}

absl::Status HierarchicalCollectives::AllReduce(const Call& call, const WaitContext& context) {
  if (!InNodesFirst(call.header)) {
    return all_->AllReduce(call, context);
  }
  // Equal inside every node and between the nodes is equal everywhere.
  DT_RETURN_IF_ERROR(local_->Meet(call, context));
  DT_RETURN_IF_ERROR(across_->Begin(call, context));
  DT_ASSIGN_OR_RETURN(const Buffer slice, local_->ReduceSlice(call, context));
  double squares = 0;
  Call between = call;
  between.header.bytes = slice.bytes;
  between.input = between.output = slice;
  between.sum_of_squares = call.sum_of_squares != nullptr ? &squares : nullptr;
  DT_RETURN_IF_ERROR(across_->AllReduce(between, context));
  return local_->GatherSlices(call, squares, context);
}

absl::StatusOr<std::unique_ptr<Registration>> HierarchicalCollectives::Register(
    const Call& call, std::shared_ptr<SymmetricBuffer> buffer, const WaitContext& context) {
  DT_RETURN_IF_ERROR(all_->Run(call, context));
  return local_->Register(call, std::move(buffer), context);
}

void HierarchicalCollectives::Break(const absl::Status& reason) {
  local_->Break(reason);
  all_->Break(reason);
}

}  // namespace dtrain::comm
