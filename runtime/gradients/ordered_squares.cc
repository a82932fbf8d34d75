#include "runtime/gradients/ordered_squares.h"

#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "kernels/optimizer/grad_norm.h"
#include "runtime/model/torch_pool.h"

namespace dtrain {

absl::StatusOr<GradientSquares> OrderedSquares(comm::Group& group, const plan::ParamLayout& layout,
                                               const ReducedRanges& reduced,
                                               const ReducedGradient& gradient) {
  const int64_t total = layout.total_elements();
  std::vector<double> blocks(static_cast<size_t>(kernels::NormBlocks(0, total)), 0.0);
  for (const plan::OwnedRange& owned : reduced.ranges) {
    DT_CHECK_EQ(owned.flat.begin % kernels::kNormBlock, 0);
    kernels::BlockSquareSumsCpu(
        gradient.at(owned, owned.flat.begin), owned.flat.begin, owned.flat.elements(),
        blocks.data() + owned.flat.begin / kernels::kNormBlock, TorchParallelFor);
  }
  if (reduced.shared_out) {  // Each block is one rank's; the others add zeros.
    DT_ASSIGN_OR_RETURN(
        const comm::Work work,
        group.AllReduce({blocks.data(), blocks.size() * sizeof(double), DType::kFloat64, {}},
                        comm::ReduceOp::kSum, {.name = "gradient norm", .caller_waits = true}));
    DT_RETURN_IF_ERROR(work.Wait());
  }
  return GradientSquares{.sum =
                             kernels::TreeSum(blocks.data(), static_cast<int64_t>(blocks.size()))};
}

}  // namespace dtrain
