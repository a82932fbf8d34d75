#include "runtime/gradients/reduced_gradient.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "kernels/optimizer/grad_norm.h"
#include "runtime/model/torch_pool.h"

namespace dtrain {
namespace {

// Index of the first entry whose gradient, as far as this rank has it, holds an infinity or a NaN;
// entries.size(): none does.
size_t FirstHere(const std::vector<plan::LayoutEntry>& entries, const ReducedRanges& reduced,
                 const ReducedGradient& gradient) {
  for (size_t i = 0; i < entries.size(); ++i) {
    const plan::FlatRange whole{entries[i].offset, entries[i].offset + entries[i].elements};
    for (const plan::OwnedRange& owned : reduced.ranges) {
      const plan::FlatRange both = plan::Intersect(whole, owned.flat);
      const float* const begin = gradient.at(owned, both.begin);
      if (both.elements() > 0 && !std::all_of(begin, begin + both.elements(),
                                              [](float value) { return std::isfinite(value); })) {
        return i;
      }
    }
  }
  return entries.size();
}

}  // namespace

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

absl::StatusOr<int64_t> LeastOfRanks(comm::Group& group, int64_t first) {
  DT_ASSIGN_OR_RETURN(
      const comm::Work work,
      group.AllReduce({&first, sizeof(first), DType::kInt64, {}}, comm::ReduceOp::kMin,
                      {.name = "first non-finite gradient", .caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  return first;
}

absl::StatusOr<std::string> FirstNonFinite(comm::Group& group, const plan::ParamLayout& layout,
                                           const ReducedRanges& reduced,
                                           const ReducedGradient& gradient) {
  const auto& entries = layout.entries();
  DT_ASSIGN_OR_RETURN(
      const int64_t first,
      LeastOfRanks(group, static_cast<int64_t>(FirstHere(entries, reduced, gradient))));
  return static_cast<size_t>(first) < entries.size() ? entries[static_cast<size_t>(first)].name
                                                     : "the whole model";
}

}  // namespace dtrain
