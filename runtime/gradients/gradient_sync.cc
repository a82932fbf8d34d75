#include "runtime/gradients/gradient_sync.h"

#include <algorithm>

#include "base/status.h"

namespace dtrain {
namespace {

// Collective: rank 0's `order` of at most `entries` of them; what it leaves out is left out.
absl::StatusOr<std::vector<int>> RankZeroOrder(comm::Group& group, std::vector<int> order,
                                               size_t entries) {
  // Unused parameters are missing from the order; -1 marks the end, so that the size is fixed.
  order.resize(entries, -1);
  const comm::Buffer buffer{order.data(), order.size() * sizeof(int), DType::kInt32, {}};
  DT_ASSIGN_OR_RETURN(
      const comm::Work work,
      group.Broadcast(buffer, 0, {.name = "readiness order", .caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  order.erase(std::find(order.begin(), order.end(), -1), order.end());
  return order;
}

}  // namespace

absl::Status GradientSync::AdoptReadinessOrder(comm::Group& group) {
  if (order_adopted_) {
    return Tune();
  }
  DT_ASSIGN_OR_RETURN(const std::vector<int> order,
                      RankZeroOrder(group, queue().readiness(), queue().entries()));
  DT_RETURN_IF_ERROR(UseReadinessOrder(order));
  order_adopted_ = true;
  return absl::OkStatus();
}

}  // namespace dtrain
