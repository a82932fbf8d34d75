#include "runtime/gradients/non_finite.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/status.h"

namespace dtrain {
namespace {

// Index of the first such entry in what this rank has of the gradient; entries().size(): none.
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

absl::StatusOr<std::string> FirstNonFinite(comm::Group& group, const plan::ParamLayout& layout,
                                           const ReducedRanges& reduced,
                                           const ReducedGradient& gradient) {
  const auto& entries = layout.entries();
  auto first = static_cast<int64_t>(FirstHere(entries, reduced, gradient));
  DT_ASSIGN_OR_RETURN(
      const comm::Work work,
      group.AllReduce({&first, sizeof(first), DType::kInt64, {}}, comm::ReduceOp::kMin,
                      {.name = "first non-finite gradient", .caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  return static_cast<size_t>(first) < entries.size() ? entries[static_cast<size_t>(first)].name
                                                     : "the whole model";
}

}  // namespace dtrain
